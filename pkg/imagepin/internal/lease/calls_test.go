package lease

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// unreachable is a lease manager that returns errors while down is set.
type unreachable struct {
	leases.Manager
	down, succeeds bool // succeeds means that Create succeeds and only its answer is lost
}

var errUnreachable = errors.New("unreachable")

func (u *unreachable) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	if u.down && !u.succeeds {
		return leases.Lease{}, errUnreachable
	}
	l, err := u.Manager.Create(ctx, opts...)
	if u.down {
		return leases.Lease{}, errUnreachable
	}
	return l, err
}

func (u *unreachable) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	if u.down {
		return errUnreachable
	}
	return u.Manager.Delete(ctx, l, opts...)
}

func TestRetry(t *testing.T) {
	n := ctdtest.New(t)
	ctx := n.Context(t)
	m := &unreachable{Manager: n.Leases}
	u := NewCalls(m)
	create := func(id, purpose string) error {
		_, err := u.Create(ctx, leases.WithID(id), leases.WithLabel(imagepin.LeaseLabel, purpose))
		return err
	}
	left := func() []string {
		t.Helper()
		all, err := n.Leases.List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, l := range all {
			ids = append(ids, l.ID)
		}
		slices.Sort(ids)
		return ids
	}
	for id, purpose := range map[string]string{"running": "pull", "over": "use", "kept": "retain"} {
		if err := create(id, purpose); err != nil {
			t.Fatal(err)
		}
	}
	m.down = true
	for _, id := range []string{"over", "kept"} {
		if err := u.Delete(ctx, leases.Lease{ID: id}); !errors.Is(err, errUnreachable) {
			t.Fatalf("delete %s: got %v, want %v", id, err, errUnreachable)
		}
	}
	m.succeeds = true
	if err := create("answer lost", "pull"); !errors.Is(err, errUnreachable) {
		t.Fatalf("create: got %v, want %v", err, errUnreachable)
	}
	m.succeeds = false
	if err := create("not created", "collect"); !errors.Is(err, errUnreachable) {
		t.Fatalf("create: got %v, want %v", err, errUnreachable)
	}
	if err := u.Retry(ctx); !errors.Is(err, errUnreachable) {
		t.Errorf("retry while containerd is down: got %v, want %v", err, errUnreachable)
	}
	if got := left(); !slices.Equal(got, []string{"answer lost", "kept", "over", "running"}) {
		t.Fatalf("leases before the retry: %q", got)
	}
	m.down = false
	if err := u.Retry(ctx); err != nil {
		t.Fatal(err)
	}
	// Leases of running calls and leases with other purposes stay.
	if got := left(); !slices.Equal(got, []string{"kept", "running"}) {
		t.Errorf("leases after the retry: %q", got)
	}
	if err := u.Delete(ctx, leases.Lease{ID: "running"}); err != nil || len(u.calls) != 0 {
		t.Errorf("delete: %v, remembered leases %v, want none", err, u.calls)
	}
}

// canceling is a lease manager that creates a lease and cancels the caller before it answers.
type canceling struct {
	leases.Manager
	cancel context.CancelFunc
}

func (l *canceling) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	made, err := l.Manager.Create(context.WithoutCancel(ctx), opts...)
	l.cancel()
	if ctx.Err() != nil {
		return leases.Lease{}, ctx.Err()
	}
	return made, err
}

// TestCreateForCanceledCaller checks that Create returns the lease to a caller that is canceled during the call, and no
// lease to a caller that was canceled before.
func TestCreateForCanceledCaller(t *testing.T) {
	n := ctdtest.New(t)
	ctx, cancel := context.WithCancel(n.Context(t))
	u := NewCalls(&canceling{n.Leases, cancel})
	l, err := u.Create(ctx, leases.WithID("late"), leases.WithLabel(imagepin.LeaseLabel, "pull"))
	if err != nil || l.ID != "late" {
		t.Fatalf("canceled during Create: got %+v, %v, want lease late", l, err)
	}
	if _, err := u.Create(ctx, leases.WithID("none"), leases.WithLabel(imagepin.LeaseLabel, "pull")); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled before Create: got %v, want context.Canceled", err)
	}
	all, err := n.Leases.List(n.Context(t))
	if err != nil || len(all) != 1 {
		t.Errorf("got leases %v, %v, want 1", all, err)
	}
	if err := u.Delete(n.Context(t), l); err != nil || len(u.calls) != 0 {
		t.Errorf("delete: %v, remembered leases %v, want none", err, u.calls)
	}
}

// TestRetryInNamespaces checks that a lease in the namespace of pins, such as that of a write of the lock, is deleted too.
func TestRetryInNamespaces(t *testing.T) {
	n := ctdtest.New(t)
	m := &unreachable{Manager: n.Leases}
	u := NewCalls(m)
	for _, namespace := range []string{"k8s.io", "imagepin"} {
		ctx := namespaces.WithNamespace(t.Context(), namespace)
		if _, err := u.Create(ctx, leases.WithID("same"), leases.WithLabel(imagepin.LeaseLabel, string(Pull))); err != nil {
			t.Fatal(err)
		}
		m.down = true
		if err := u.Delete(ctx, leases.Lease{ID: "same"}); !errors.Is(err, errUnreachable) {
			t.Fatalf("delete in %s: got %v, want %v", namespace, err, errUnreachable)
		}
		m.down = false
	}
	if err := u.Retry(namespaces.WithNamespace(t.Context(), "k8s.io")); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"k8s.io", "imagepin"} {
		all, err := n.Leases.List(namespaces.WithNamespace(t.Context(), namespace))
		if err != nil {
			t.Fatal(err)
		}
		if len(all) > 0 {
			t.Errorf("namespace %s has leases %v, want none", namespace, all)
		}
	}
}
