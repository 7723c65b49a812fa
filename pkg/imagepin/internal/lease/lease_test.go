package lease

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// syncLeases records which leases are deleted synchronously.
type syncLeases struct {
	leases.Manager
	sync    []bool
	failing error
}

func (l *syncLeases) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	l.sync = append(l.sync, o.Synchronous)
	if l.failing != nil {
		return l.failing
	}
	return l.Manager.Delete(ctx, lease, opts...)
}

// TestWith checks that the lease is deleted after success and failure, even if the caller is canceled.
func TestWith(t *testing.T) {
	for name, fails := range map[string]error{"success": nil, "failure": errors.New("no")} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			m := &syncLeases{Manager: n.Leases}
			blobs := ctdtest.Blobs{}
			img := blobs.Image("linux/amd64", "a", nil)
			ctx, cancel := context.WithCancel(n.Context(t))
			err := With(ctx, m, Pull, func(ctx context.Context) error {
				n.Write(ctx, t, blobs)
				n.Collect(t)
				if !n.HasBlob(t, img.Layer.Digest) {
					t.Error("the lease does not protect its content")
				}
				all, err := m.List(ctx)
				if err != nil || len(all) != 1 || all[0].Labels[imagepin.LeaseLabel] != "pull" || all[0].Labels["containerd.io/gc.expire"] != "" {
					t.Errorf("got leases %+v, %v, want one with its label and without an expiry", all, err)
				}
				cancel() // cleanup does not depend on the caller
				return fails
			})
			if !errors.Is(err, fails) {
				t.Errorf("got %v, want %v", err, fails)
			}
			if all, err := m.List(n.Context(t)); err != nil || len(all) != 0 {
				t.Errorf("leftover leases: %v, %v", all, err)
			}
			if len(m.sync) != 1 || m.sync[0] {
				t.Errorf("deletions were synchronous: got %v, want [false]", m.sync)
			}
		})
	}
}

// TestWithFailedDelete checks that a failure to delete the lease does not fail the call.
func TestWithFailedDelete(t *testing.T) {
	n := ctdtest.New(t)
	m := &syncLeases{Manager: n.Leases, failing: errors.New("no")}
	if err := With(n.Context(t), m, Pull, func(context.Context) error { return nil }); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestDeleteLeftovers(t *testing.T) {
	n := ctdtest.New(t)
	ctx := n.Context(t)
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "a", nil)
	other := ctdtest.Blobs{}
	kept := other.Image("linux/amd64", "b", nil)
	held := map[string]ctdtest.Blobs{"pull-1": blobs, "pull-2": blobs, "retain": other}
	for id, label := range map[string]string{
		"pull-1": "pull", "pull-2": "pull", "use": "use", "collect": "collect",
		"retain": "retain", "pullover": "pullover", "foreign": "",
	} {
		opts := []leases.Opt{leases.WithID(id)}
		if label != "" {
			opts = append(opts, leases.WithLabel(imagepin.LeaseLabel, label))
		}
		if _, err := n.Leases.Create(ctx, opts...); err != nil {
			t.Fatal(err)
		}
		n.Write(leases.WithLease(ctx, id), t, held[id])
	}
	m := &syncLeases{Manager: n.Leases}
	if late, err := DeleteLeftovers(ctx, m); err != nil || len(late) > 0 {
		t.Fatal(late, err)
	}
	all, err := n.Leases.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	left := make(map[string]bool)
	for _, l := range all {
		left[l.ID] = true
	}
	if len(left) != 3 || !left["retain"] || !left["pullover"] || !left["foreign"] {
		t.Errorf("remaining leases: got %v, want retain, pullover and foreign", left)
	}
	if n.HasBlob(t, img.Layer.Digest) || !n.HasBlob(t, kept.Layer.Digest) {
		t.Error("the content does not match the remaining leases")
	}
	if late, err := DeleteLeftovers(ctx, m); err != nil || len(late) > 0 {
		t.Error(late, err)
	}
	if len(m.sync) != 4 {
		t.Errorf("deleted %d leases, want 4", len(m.sync))
	}
}
