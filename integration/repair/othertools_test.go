package repair

import (
	"strings"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestCheckAfterTagsOfOtherTools tags an image as other tools do: with a reference, with a name that no pod can use, and as a
// copy of a record with its labels. The references are adopted, the name is listed, and none of them is a difference.
func TestCheckAfterTagsOfOtherTools(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	tag, byDigest := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform())
	r.MustPull(tag, "")
	mine, copied := r.Reg.Ref("app:mine"), r.Reg.Ref("app:copied")
	if out, err := r.Ctr(r.Ctx, "images", "tag", tag, mine, "no-reference"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	records := r.Client().ImageService()
	record, err := records.Get(testkit.NSContext(r.Ctx), byDigest)
	if err != nil {
		t.Fatal(err)
	}
	record.Name = copied
	if _, err := records.Create(testkit.NSContext(r.Ctx), record); err != nil { // as nerdctl tag
		t.Fatal(err)
	}
	var out string
	r.Eventually("check finds no difference", func() (clean bool) {
		out, clean = r.Command("check")
		listed, ok := r.Command("images")
		return clean && ok && strings.Contains(listed, mine+" ") && strings.Contains(listed, copied+" ")
	})
	const note = "no-reference\n  Note:  it is not adopted: its name is not a normalized reference; use docker.io/library/no-reference:latest\n"
	if !strings.Contains(out, note) || !strings.HasSuffix(out, " 0 differ, 0 repaired, 1 not adopted\n") {
		t.Errorf("got\n%s", out)
	}
	if out, ok := r.Command("check", "--repair"); !ok || !strings.Contains(out, note) {
		t.Errorf("with --repair: got\n%s", out)
	}
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	if out, ok := r.Command("check"); !ok || !strings.Contains(out, note) {
		t.Errorf("after a restart: got\n%s", out)
	}
}
