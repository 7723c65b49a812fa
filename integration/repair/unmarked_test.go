package repair

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

var mark = regexp.MustCompile(`,"durable":"[^"]*"`)

// TestUnmarkedAfterBoot starts a node after another boot, with images without a mark of durability. One has lost the content of all of
// its files, and the registry is down. Calls wait for the comparison; the damaged image is offered when it is unpacked again.
func TestUnmarkedAfterBoot(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	lost, _ := r.Push("lost:v1", testimages.Options{Version: "lost"}, testimages.HostPlatform())
	kept, _ := r.Push("kept:v1", testimages.Options{Version: "kept"}, testimages.HostPlatform())
	r.MustPull(lost, "runc")
	id := r.MustPull(kept, "runc")
	r.MustRemovePod(r.MustPod("runc")) // pulls the sandbox image
	truncateAll(t, r.DirectoryIn(lost, "overlayfs"))
	all, err := r.Client().ImageService().List(testkit.NSContext(r.Ctx))
	if err != nil {
		t.Fatal(err)
	}
	for _, img := range all {
		for name, value := range img.Labels {
			if !strings.HasPrefix(name, "io.imagepin.key.") || !mark.MatchString(value) {
				continue
			}
			img.Labels[name] = mark.ReplaceAllString(value, "")
			if _, err := r.Client().ImageService().Update(testkit.NSContext(r.Ctx), img, "labels."+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(r.NodeKey()), "boot")
	before, err := os.ReadFile(file)
	if err != nil || len(before) == 0 {
		t.Fatalf("the boot is not recorded: %q, %v", before, err)
	}
	if err := os.WriteFile(file, []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Reg.Down()
	if err := r.Restart(r.Ctx, nil); err != nil {
		t.Fatal(err)
	}
	r.MustRemovePod(r.MustPod("runc"))
	if got := r.MustStatus(kept, "runc").GetId(); got != id {
		t.Errorf("ImageStatus of the intact image: got %q, want %s", got, id)
	}
	r.Eventually("the damaged image is unpacked again", func() bool { return r.MustStatus(lost, "runc") != nil })
	r.WantRun("runc", lost, testkit.Line(testimages.Options{Version: "lost"}, testimages.HostPlatform()))
	r.Eventually("the boot is recorded", func() bool {
		now, err := os.ReadFile(file)
		return err == nil && string(now) == string(before)
	})
	if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
		t.Errorf("a deep check found %v, want nothing", found)
	}
}
