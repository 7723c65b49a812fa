package repair

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnmarkedAfterBoot starts a node after another boot, with images without a mark of durability. One has lost the content of all of
// its files, one lacks its layer and is unverified, and the registry is down. Calls wait for the comparison; the damaged image is
// offered when it is unpacked again.
func TestUnmarkedAfterBoot(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: fmt.Sprintf("[plugins.%q]\nsync = false\n", testkit.OurSection)})
	lost, _ := r.Push("lost:v1", testimages.Options{Version: "lost"}, testimages.HostPlatform())
	kept, _ := r.Push("kept:v1", testimages.Options{Version: "kept"}, testimages.HostPlatform())
	bare, _ := r.Push("bare:v1", testimages.Options{Version: "bare"}, testimages.HostPlatform())
	r.MustPull(lost, "runc")
	r.MustPull(bare, "runc")
	if err := r.Client().ContentStore().Delete(testkit.NSContext(r.Ctx), r.Blobs(bare)["layer"]); err != nil {
		t.Fatal(err)
	}
	id := r.MustPull(kept, "runc")
	r.MustRemovePod(r.MustPod("runc")) // pulls the sandbox image
	r.TruncateAll(r.DirectoryIn(lost, "overlayfs"))
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(r.NodeKey()), "boot-compared")
	before, err := os.ReadFile(file)
	if err != nil || len(before) == 0 {
		t.Fatalf("the boot is not recorded: %q, %v", before, err)
	}
	if err := os.WriteFile(file, []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Reg.Down()
	if err := r.Restart(r.Ctx, func(o *node.Options) { o.Extra = "" }); err != nil {
		t.Fatal(err)
	}
	r.MustRemovePod(r.MustPod("runc"))
	if got := r.MustStatus(kept, "runc").GetId(); got != id {
		t.Errorf("ImageStatus of the intact image: got %q, want %s", got, id)
	}
	if r.MustStatus(bare, "runc") == nil {
		t.Error("the image without its layer is not offered")
	}
	resp, err := r.Control().Images(r.Ctx, &api.ImagesRequest{RefGlob: bare})
	if err != nil || len(resp.Keys) != 1 || resp.Keys[0].State != "unverified" || !strings.Contains(resp.Keys[0].Problem, "is not on the node") {
		t.Errorf("the image without its layer: got %v, %v, want it unverified", resp, err)
	}
	r.Eventually("the damaged image is unpacked again", func() bool { return r.MustStatus(lost, "runc") != nil })
	r.WantRun("runc", lost, testkit.Line(testimages.Options{Version: "lost"}, testimages.HostPlatform()))
	r.Eventually("the boot is recorded", func() bool {
		now, err := os.ReadFile(file)
		return err == nil && string(now) == string(before)
	})
	if found := r.Unverified(); len(found) != 2 || !strings.HasPrefix(found[0].Subject, bare) && !strings.HasPrefix(found[1].Subject, bare) {
		t.Errorf("a deep check: got unverified %v, want the keys of %s", found, bare)
	}
	status, err := r.Control().Status(r.Ctx, &api.StatusRequest{})
	if err != nil || !slices.ContainsFunc(status.Problems, func(p *api.Problem) bool { return p.Message == "unverified keys: 2" }) {
		t.Errorf("status: got problems %v, %v", status.GetProblems(), err)
	}
}
