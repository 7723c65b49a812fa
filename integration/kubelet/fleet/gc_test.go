package fleet

import (
	"context"
	"fmt"
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// pressure makes kubelet remove every image that it considers unused.
var pressure = map[string]any{"imageMinimumGCAge": "1ms", "evictionHard": map[string]any{"imagefs.available": "99%"}}

var allHandlers = []string{node.DefaultHandler, second, foreign}

// TestImageGC lets kubelet remove images while no pod runs. It keeps those of the current lock and of the previous one, which
// a rollback needs, and removes those of an older lock and those that no lock names.
func TestImageGC(t *testing.T) {
	t.Parallel()
	r := newRig(t, "gc", node.Options{Handlers: handlers, DiscardUnpackedLayers: true})
	manifest := r.manifest("web.yaml")
	var digests, locks []string
	for _, version := range []string{"1", "2", "3"} {
		digests = append(digests, r.push("shop/web:v1", version))
		locks = append(locks, r.lock(version+".lock.yaml", manifest))
	}
	r.push("shop/other:v1", "other")
	r.startNode()
	image := func(i int) string { return r.Reg.Ref("shop/web@" + digests[i]) }
	r.imagepin(0, []string{"apply", locks[0]}, "Applied lock")
	r.imagepin(0, []string{"apply", locks[1]}, "Applied lock")
	other := r.MustPull(r.Reg.Ref("shop/other:v1"), "")
	released := []string{r.MustStatus(image(0), "").GetId(), r.MustStatus(image(0), foreign).GetId()}
	r.startKubelet(pressure)
	r.awaitRemoved(other)
	if removed := r.removed(); len(removed) != 1 {
		t.Errorf("kubelet removed %v, want only %s", removed, other)
	}
	for i := range 2 {
		for _, handler := range allHandlers {
			if img := r.MustStatus(image(i), handler); img == nil || !img.Pinned {
				t.Errorf("handler %s: image of lock %d is %v, want it retained", handler, i+1, img)
			}
		}
	}

	r.stopKubelet()
	r.imagepin(0, []string{"apply", locks[2]}, "Applied lock")
	r.startKubelet(pressure)
	r.awaitRemoved(released...)
	for i := range digests {
		for _, handler := range allHandlers {
			if img := r.MustStatus(image(i), handler); (img != nil) != (i > 0) {
				t.Errorf("handler %s: image of lock %d is %v", handler, i+1, img)
			}
		}
	}
	r.Reg.Down()
	r.imagepin(0, []string{"rollback"}, "Applied lock", digests[1][7:19])
	r.imagepin(0, []string{"lock", "status"}, "0 missing")
	r.imagepin(0, []string{"check", "--deep"})
}

// removed returns the IDs of the images that kubelet has removed.
func (r *rig) removed() (ids []string) {
	for _, c := range r.kubelet.Proxy.Calls("RemoveImage") {
		if c.Err == nil {
			ids = append(ids, c.Request.(*cri.RemoveImageRequest).GetImage().GetImage())
		}
	}
	return ids
}

// awaitRemoved waits until kubelet has removed images.
func (r *rig) awaitRemoved(ids ...string) {
	r.T.Helper()
	testkit.EventuallyIn(r.T, patience, fmt.Sprintf("kubelet removes images %v", ids), func(context.Context) (bool, error) {
		removed := r.removed()
		return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(removed, id) }), nil
	})
}
