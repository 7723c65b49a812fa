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

// TestStrict creates a pod whose image the lock does not name. Its status and its events say so and what to do. When a lock
// names the image, the pod starts by itself.
func TestStrict(t *testing.T) {
	t.Parallel()
	r := newRig(t, "strict", node.Options{Mode: node.Serve, Extra: strictRules})
	r.push("shop/web:v1", "web")
	web := r.lock("web.lock.yaml", r.manifest("web.yaml"))
	strict := r.push("strict/app:v1", "strict")
	manifest := r.manifest("strict.yaml")
	both := r.bundle("both.tar.zst", r.lock("both.lock.yaml", manifest))
	r.startNode()
	r.imagepin(0, []string{"apply", web}, "Applied lock")
	r.startKubelet(nil)
	r.kubectl("apply", "-f", manifest)
	image := r.Reg.Ref("strict/app:v1")
	r.pods("strict", 1, "wait with NotInLock", func(p core.Pod) bool { return strings.Count(waiting(p), "NotInLock: "+image) == 2 })
	r.event("strict", func(e core.Event) bool {
		return e.Reason == "Failed" && strings.Contains(e.Message, "NotInLock: "+image) && strings.Contains(e.Message, "imagepin apply")
	})
	r.Reg.Down()
	r.imagepin(0, []string{"apply", both}, "Applied lock", image)
	r.running("strict", 1, strict)
	r.imagepin(0, []string{"lock", "status"}, "0 missing")
}
