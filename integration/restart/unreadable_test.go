package restart

import (
	"os"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnreadAtStart has containerd's CRI start while an image is damaged so that it cannot read it. Once the content is repaired, by a repair or by a
// pull for another handler, the image runs: no restart is needed for the CRI to know it.
func TestUnreadAtStart(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"index", "manifest", "configuration"} {
		for _, how := range []string{"repair", "pull"} {
			t.Run(part+" "+how, func(t *testing.T) {
				t.Parallel()
				r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
				r.MustRemovePod(r.MustPod("runc"))
				ref, _ := r.Push("app:v1", testimages.Options{}, testimages.HostPlatform(), testkit.Foreign)
				id := r.MustPull(ref, "runc")
				r.Collect()
				path := r.BlobFile(r.Blobs(ref)[part])
				b, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				b[0] ^= 1 // of a brace: it is no JSON any more
				if err := os.Chmod(path, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, b, 0o400); err != nil {
					t.Fatal(err)
				}
				r.KillAndRestart(nil)
				if how == "pull" {
					if got := r.MustPull(ref, testkit.Second); got != id {
						t.Errorf("the pull that repairs it gives %s", got)
					}
				}
				for _, f := range r.DeepCheck(true) {
					if !f.Repaired || f.Error != "" || how == "pull" {
						t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
					}
				}
				p := r.MustPod("runc")
				r.WantLine(p, node.ContainerOptions{Image: id, UserImage: ref}, testkit.Line(testimages.Options{}, testimages.HostPlatform()))
				r.MustRemovePod(p)
				r.WantUndamaged(ref, "")
			})
		}
	}
}
