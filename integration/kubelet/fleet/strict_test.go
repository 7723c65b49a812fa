package fleet

import (
	"strings"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// strictRules allow only images of the lock below strict/.
const strictRules = `
[[plugins."io.containerd.imagepin.v1.images".rules]]
match = ["**/strict/**"]
locked = "strict"
`

// TestStrict creates pods of which the lock does not name the image, and the image of a volume. Their status and their events
// say so and what to do. When a lock names the images, the pods start by themselves.
func TestStrict(t *testing.T) {
	t.Parallel()
	r := newRig(t, "strict", node.Options{Mode: node.Serve, Extra: strictRules})
	web := r.push("shop/web:v1", "web")
	lock := r.lock("web.lock.yaml", r.manifest("web.yaml"))
	strict := r.push("strict/app:v1", "strict")
	r.push("strict/data:v1", "data")
	manifest := r.manifest("strict.yaml")
	both := r.bundle("both.tar.zst", r.lock("both.lock.yaml", manifest))
	r.startNode()
	r.imagepin(0, []string{"apply", lock}, "Applied lock")
	r.startKubelet(nil)
	r.kubectl("apply", "-f", manifest)
	image, volume := r.Reg.Ref("strict/app:v1"), r.Reg.Ref("strict/data:v1")
	r.pods("strict", 1, "wait with NotInLock", func(p core.Pod) bool { return strings.Count(waiting(p), "NotInLock: "+image) == 2 })
	r.pods("volume", 1, "wait with NotInLock", func(p core.Pod) bool { return strings.Contains(waiting(p), "NotInLock: "+volume) })
	for pod, ref := range map[string]string{"strict": image, "volume": volume} {
		r.event(pod, func(e core.Event) bool {
			return e.Reason == "Failed" && strings.Contains(e.Message, "NotInLock: "+ref) && strings.Contains(e.Message, "imagepin apply")
		})
	}
	r.Reg.Down()
	r.imagepin(0, []string{"apply", both}, "Applied lock", image)
	r.running("strict", 1, strict)
	r.running("volume", 1, web)
	r.imagepin(0, []string{"lock", "status"}, "0 missing")
}
