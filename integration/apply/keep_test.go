package apply

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestRemovedImageComesBack removes an image of a lock, as crictl rmi does, on a node that reaches no registry. It is ready again
// after the next look at the lock, from the content that the lock retains. Other ways to remove images keep it. Two nodes, one
// with a bundle, wait for their next look at the same time.
func TestRemovedImageComesBack(t *testing.T) {
	t.Parallel()
	var await []func()
	for _, fromBundle := range []bool{true, false} {
		await = append(await, removeLockedImage(t, fromBundle))
	}
	for _, a := range await {
		a()
	}
}

// removeLockedImage removes the image of a lock on a new node. It returns a function that waits until the image is ready again.
func removeLockedImage(t *testing.T, fromBundle bool) (await func()) {
	t.Helper()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	ref := r.Reg.Ref("shop/app:v1")
	file := writeLock(r, "lock.yaml", map[string]string{ref: r.Version("shop/app:v1", "old")})
	r.MustRemovePod(r.MustPod("")) // the sandbox image
	if fromBundle {
		file = makeBundle(r, "b.tar", file)
		withoutRegistry(r)
	}
	imagepinWants(r, 0, []string{"apply", file}, "Applied lock")
	if !fromBundle {
		withoutRegistry(r)
	}
	imagepinWants(r, 0, []string{"prune", "--older-than", "0s", "--pinned", "--yes"})
	imagepinWants(r, 0, []string{"check"})
	imagepinWants(r, 0, []string{"lock", "status"}, "1 locked, 1 ready, 0 running, 0 missing")
	r.MustRemove(ref, "")
	imagepinWants(r, 10, []string{"lock", "status"}, "1 missing")
	return func() {
		t.Helper()
		testkit.EventuallyIn(t, 3*time.Minute, fmt.Sprintf("the image is ready again (from a bundle: %t)", fromBundle), func(context.Context) (bool, error) {
			out, _ := r.Operator("lock", "status")
			return strings.Contains(out, "1 ready, 0 running, 0 missing"), nil
		})
		r.WantVersion(node.KubeletPod{Image: ref, Always: true}, "old")
	}
}

// TestRollbackToRemovedImage goes back, without a registry, to a lock that was pulled and whose image was removed.
func TestRollbackToRemovedImage(t *testing.T) {
	t.Parallel()
	l := newLocks(t, node.Options{Handlers: testkit.OnNative, DiscardUnpackedLayers: true})
	imagepinWants(l.Rig, 0, []string{"apply", l.first}, "Applied lock")
	imagepinWants(l.Rig, 0, []string{"apply", l.second}, "Applied lock")
	l.MustRemovePod(l.MustPod("")) // the sandbox image
	l.MustRemove(l.Reg.Ref("shop/app@"+l.old), "")
	l.Reg.Down()
	imagepinWants(l.Rig, 0, []string{"rollback"}, "Applied lock", l.old[7:19])
	l.WantVersion(node.KubeletPod{Image: l.ref}, "old")
}

// TestUninstallWithLock removes imagepin from a node right after a second lock, when the blob of the first may not be collected.
func TestUninstallWithLock(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	ref := r.Reg.Ref("shop/app:v1")
	for _, version := range []string{"old", "new"} {
		lock := writeLock(r, version+".yaml", map[string]string{ref: r.Version("shop/app:v1", version)})
		imagepinWants(r, 0, []string{"apply", lock}, "Applied lock")
	}
	imagepinWants(r, 0, []string{"uninstall", "--yes"})
}
