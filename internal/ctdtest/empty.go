package ctdtest

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

// WantEmpty collects garbage, and checks that the node has no records, content, snapshots, leases or ingests.
func (n *Node) WantEmpty(t testing.TB) {
	t.Helper()
	n.Collect(t)
	for name, img := range n.Records(t) {
		t.Errorf("remaining record: %s of %s", name, img.Target.Digest)
	}
	noError(t, n.Content.Walk(n.Context(t), func(i content.Info) error {
		t.Errorf("remaining blob: %s", i.Digest)
		return nil
	}))
	for name, sn := range n.snapshotters {
		if err := sn.Walk(n.Context(t), func(_ context.Context, i snapshots.Info) error {
			t.Errorf("remaining snapshot: %s in %s", i.Name, name)
			return nil
		}); err != nil && !errdefs.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	n.WantNoLease(t)
}

// WantNoLease checks that the node has no lease and, after a garbage collection, no ingests.
func (n *Node) WantNoLease(t testing.TB) {
	t.Helper()
	if all, err := n.Leases.List(n.Context(t)); err != nil || len(all) > 0 {
		t.Errorf("remaining leases: %v, %v", all, err)
	}
	n.Collect(t)
	if all, err := n.Content.ListStatuses(n.Context(t)); err != nil || len(all) > 0 {
		t.Errorf("remaining ingests: %v, %v", all, err)
	}
}
