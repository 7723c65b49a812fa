package integration

import (
	"os"
	"testing"

	testimages "github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// TestUnreadAtStart has containerd's CRI start while an image is damaged so that it cannot read it. Once the content is repaired, by a repair or by a
// pull for another handler, the image runs: no restart is needed for the CRI to know it.
func TestUnreadAtStart(t *testing.T) {
	t.Parallel()
	for _, part := range []string{"index", "manifest", "configuration"} {
		for _, how := range []string{"repair", "pull"} {
			t.Run(part+" "+how, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, node.Options{Handlers: onNative})
				r.removePod(r.pod("runc"))
				ref, _ := r.push("app:v1", testimages.Options{}, testimages.HostPlatform(), foreign)
				id := r.pull(ref, "runc")
				r.collect()
				path := r.blobFile(r.blobs(ref)[part])
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
				r.crash(nil)
				if how == "pull" {
					if got := r.pull(ref, second); got != id {
						t.Errorf("the pull that repairs it gives %s", got)
					}
				}
				for _, f := range r.deepCheck(true) {
					if !f.Repaired || f.Error != "" || how == "pull" {
						t.Errorf("%s: %s: %s, %s", f.Subject, f.Problem, f.Repair, f.Error)
					}
				}
				p := r.pod("runc")
				r.wantLine(p, node.ContainerOptions{Image: id, UserImage: ref}, line(testimages.Options{}, testimages.HostPlatform()))
				r.removePod(p)
				r.wantWhole(ref, "")
			})
		}
	}
}
