package restart

import (
	"os"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnreadableAtStart starts containerd with an image that its CRI cannot read. After a repair, or a pull for another
// handler that repairs the content, the image runs without another restart.
func TestUnreadableAtStart(t *testing.T) {
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
				b[0] ^= 1 // the opening brace; the file is no longer JSON
				if err := os.Chmod(path, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, b, 0o400); err != nil {
					t.Fatal(err)
				}
				r.KillAndRestart(nil)
				if how == "pull" {
					if got := r.MustPull(ref, testkit.Second); got != id {
						t.Errorf("the pull that repairs the image returned %s, want %s", got, id)
					}
				}
				for _, f := range r.DeepCheck(true) {
					if !f.Repaired || f.Error != "" || how == "pull" {
						t.Errorf("finding %s (%s): got repaired %t, repair %q, error %q", f.Subject, f.Problem, f.Repaired, f.Repair, f.Error)
					}
				}
				p := r.MustPod("runc")
				r.WantLine(p, node.ContainerOptions{Image: id, UserImage: ref}, testkit.Line(testimages.Options{}, testimages.HostPlatform()))
				r.WantUndamaged(ref, "", []*node.Pod{p, r.MustPod(testkit.Second)})
			})
		}
	}
}
