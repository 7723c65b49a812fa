package applied_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// pins records what a store sets.
type pins struct {
	mu   sync.Mutex
	pins []pin.Pin
	kept []digest.Digest
}

func (p *pins) SetLock(all []pin.Pin, kept []digest.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pins, p.kept = all, slices.Clone(kept)
}

// env is a store on containerd's metadata.
type env struct {
	*applied.Store
	node   *ctdtest.Node
	pins   *pins
	config applied.Config
	retain error // what Retain returns
	synced int   // calls of Retain
}

func newEnv(t *testing.T) *env {
	t.Helper()
	e := &env{node: ctdtest.New(t), pins: &pins{}}
	e.config = applied.Config{
		Images: e.node.Images, Content: e.node.Content, Leases: e.node.Leases, Namespaces: namespaces{e.node.DB}, Pins: e.pins,
		Retain:   func(context.Context, ...digest.Digest) error { e.synced++; return e.retain },
		Retained: func(context.Context) ([]digest.Digest, error) { return nil, nil },
	}
	e.Store = applied.New(e.config)
	return e
}

// namespaces creates namespaces as containerd's service does.
type namespaces struct{ db *metadata.DB }

func (n namespaces) Create(ctx context.Context, name string, labels map[string]string) error {
	return n.db.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(ctx, name, labels) })
}

func lockOf(t *testing.T, text string) *applied.Applied {
	t.Helper()
	d := digest.FromString(text)
	ref, err := imagepin.ParseReference("registry.example/app@" + d.String())
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.New([]lock.Image{{ID: "registry.example/app:v1", Ref: ref.(reference.Canonical)}})
	if err != nil {
		t.Fatal(err)
	}
	a := &applied.Applied{Lock: l, Roots: map[digest.Digest]ocispec.Descriptor{d: {MediaType: ocispec.MediaTypeImageIndex, Digest: d, Size: 1}}}
	if a.Digest, err = l.Digest(); err != nil {
		t.Fatal(err)
	}
	return a
}

func (e *env) record(t *testing.T) (images.Image, error) {
	return e.node.Images.Get(e.node.InNamespace(t, pin.Namespace), pin.LockRecord)
}

// TestLoadDuringApply lists the images again while a lock is applied, as after a lost event stream. What the apply retains
// stays so.
func TestLoadDuringApply(t *testing.T) {
	e := newEnv(t)
	kept := digest.FromString("new")
	if err := errors.Join(e.Load(t.Context()), e.Write(t.Context(), applied.State{Current: lockOf(t, "old")}), e.Keep(t.Context(), []digest.Digest{kept}), e.Load(t.Context())); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(e.pins.kept, kept) || len(e.pins.pins) != 1 {
		t.Errorf("after a load: got kept %v and pins %v", e.pins.kept, e.pins.pins)
	}
	if err := e.Write(t.Context(), applied.State{Current: lockOf(t, "new"), Previous: lockOf(t, "old")}); err != nil {
		t.Fatal(err)
	}
	if want := []digest.Digest{digest.FromString("old")}; !slices.Equal(e.pins.kept, want) {
		t.Errorf("after the switch: kept %v, want %v", e.pins.kept, want)
	}
}

// TestCanceledWrite checks that a canceled Write changes neither the record nor the pins.
func TestCanceledWrite(t *testing.T) {
	e := newEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Write(ctx, applied.State{Current: lockOf(t, "new")}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	if _, err := e.record(t); !errdefs.IsNotFound(err) || len(e.pins.pins) > 0 {
		t.Errorf("got record %v and pins %v", err, e.pins.pins)
	}
}

// TestSwitchedDespiteRetain checks that a Write whose lock is switched succeeds, and that Repair completes it.
func TestSwitchedDespiteRetain(t *testing.T) {
	e := newEnv(t)
	e.retain = errors.New("containerd restarts")
	if err := e.Write(t.Context(), applied.State{Current: lockOf(t, "new")}); err != nil {
		t.Fatal(err)
	}
	e.retain = nil
	before := e.synced
	if err := errors.Join(e.Repair(t.Context()), e.Repair(t.Context())); err != nil || e.synced != before+1 {
		t.Errorf("two repairs: %v, %d calls of Retain, want 1", err, e.synced-before)
	}
}

// TestRemovedLockLeavesNothing removes a lock, and the lease of a write that was killed.
func TestRemovedLockLeavesNothing(t *testing.T) {
	e := newEnv(t)
	if err := e.Write(t.Context(), applied.State{Current: lockOf(t, "new")}); err != nil {
		t.Fatal(err)
	}
	ctx := e.node.InNamespace(t, pin.Namespace)
	l, err := e.node.Leases.Create(ctx, leases.WithRandomID(), leases.WithLabel(imagepin.LeaseLabel, string(lease.Pull)))
	if err != nil {
		t.Fatal(err)
	}
	again := applied.New(e.config)
	if err := errors.Join(again.Load(t.Context()), again.Write(t.Context(), applied.State{})); err != nil {
		t.Fatal(err)
	}
	left, err := e.node.Leases.List(ctx)
	if err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v, want none (%s was left)", left, err, l.ID)
	}
	if _, err := e.record(t); !errdefs.IsNotFound(err) {
		t.Errorf("the record: got %v, want none", err)
	}
	if len(e.pins.pins) > 0 {
		t.Errorf("pins %v, want none", e.pins.pins)
	}
}
