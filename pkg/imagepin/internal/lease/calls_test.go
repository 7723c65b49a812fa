package lease

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// unreachable is a lease manager that returns errors while down is set.
type unreachable struct {
	leases.Manager
	down, succeeds bool // succeeds means that the request is executed, and only its answer is lost
}

var errUnreachable = errors.New("gone")

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
			t.Fatalf("delete %s: %v", id, err)
		}
	}
	m.succeeds = true
	if err := create("answer lost", "pull"); !errors.Is(err, errUnreachable) {
		t.Fatalf("create: %v", err)
	}
	m.succeeds = false
	if err := create("never made", "collect"); !errors.Is(err, errUnreachable) {
		t.Fatalf("create: %v", err)
	}
	if err := u.Retry(ctx); !errors.Is(err, errUnreachable) {
		t.Errorf("retry while it is down: %v", err)
	}
	if got := left(); !slices.Equal(got, []string{"answer lost", "kept", "over", "running"}) {
		t.Fatalf("before: %q", got)
	}
	m.down = false
	if err := u.Retry(ctx); err != nil {
		t.Fatal(err)
	}
	// The lease of a running call stays, and so does a lease with another purpose.
	if got := left(); !slices.Equal(got, []string{"kept", "running"}) {
		t.Errorf("after: %q", got)
	}
	if err := u.Delete(ctx, leases.Lease{ID: "running"}); err != nil || len(u.calls) != 0 {
		t.Errorf("%v, remembered: %v", err, u.calls)
	}
}

// leaving is a lease manager whose caller goes away before the answer, as over a connection. The lease is created.
type leaving struct {
	leases.Manager
	leave context.CancelFunc
}

func (l *leaving) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	made, err := l.Manager.Create(context.WithoutCancel(ctx), opts...)
	l.leave()
	if ctx.Err() != nil {
		return leases.Lease{}, ctx.Err()
	}
	return made, err
}

// A caller that goes away during Create gets the lease, to delete it. A caller that has gone before gets none.
func TestCreateForCanceledCaller(t *testing.T) {
	n := ctdtest.New(t)
	ctx, cancel := context.WithCancel(n.Context(t))
	u := NewCalls(&leaving{n.Leases, cancel})
	l, err := u.Create(ctx, leases.WithID("late"), leases.WithLabel(imagepin.LeaseLabel, "pull"))
	if err != nil || l.ID != "late" {
		t.Fatalf("%+v, %v", l, err)
	}
	if _, err := u.Create(ctx, leases.WithID("none"), leases.WithLabel(imagepin.LeaseLabel, "pull")); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	all, err := n.Leases.List(n.Context(t))
	if err != nil || len(all) != 1 {
		t.Errorf("leases %v, %v", all, err)
	}
	if err := u.Delete(n.Context(t), l); err != nil || len(u.calls) != 0 {
		t.Errorf("%v, remembered: %v", err, u.calls)
	}
}
