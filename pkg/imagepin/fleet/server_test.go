package fleet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/apply"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

var (
	one = digest.FromString("one")
	two = digest.FromString("two")
)

func lockedImageOf(t *testing.T, id string, d digest.Digest) lock.Image {
	t.Helper()
	ref, err := imagepin.ParseReference("registry.example/app@" + d.String())
	if err != nil {
		t.Fatal(err)
	}
	return lock.Image{ID: id, Ref: ref.(reference.Canonical)}
}

// statusOf returns the status of a lock with an image that runs, and one that is not ready for a target.
func statusOf(t *testing.T) (apply.Status, apply.Usage) {
	t.Helper()
	a, b := lockedImageOf(t, "registry.example/app:1", one), lockedImageOf(t, "", two)
	amd64, arm64 := runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "native"}, runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "native"}
	current := &applied.Applied{Lock: &lock.Lock{Images: []lock.Image{a, b}}, Digest: "sha256:current", Name: "x.yaml", Bundle: true, Handlers: []string{"runc"}, At: time.Unix(100, 0)}
	st := apply.Status{
		State:    applied.State{Current: current, Previous: &applied.Applied{Lock: &lock.Lock{}, Digest: "sha256:previous"}},
		Applying: &apply.Progress{Phase: apply.Importing, Lock: "sha256:next", Done: 3, Total: 4, Ref: "r"},
		Failed:   &apply.Failure{At: time.Unix(200, 0), Name: "y.yaml", Err: errors.New("no")},
		Images: []apply.ImageStatus{
			{Image: a, Ready: []runtimeplatform.Target{amd64}},
			{Image: b, Ready: []runtimeplatform.Target{amd64}, Missing: []runtimeplatform.Target{arm64}},
		},
		DriftedContainers: 5,
	}
	used := apply.Usage{
		Running: map[string]int{a.Ref.String(): 2},
		Drifted: []apply.Drifted{{Container: apply.Container{Namespace: "shop", Pod: "web", Name: "app", Ref: "registry.example/app:1", ImageID: two}, Digest: two, Locked: one}},
		Extra:   []apply.Extra{{ImageID: two, Digest: one, Refs: []string{"registry.example/old:1"}, Containers: 1}},
	}
	return st, used
}

func TestLockStatus(t *testing.T) {
	st, used := statusOf(t)
	got := lockStatus(st, used)
	for what, equal := range map[string]bool{
		"lock": got.GetLock().GetDigest() == "sha256:current" && got.GetLock().GetBundle() && got.GetLock().GetName() == "x.yaml" &&
			got.GetLock().GetImages() == 2 && got.GetLock().GetHandlers()[0] == "runc" && got.GetLock().GetAppliedAt().GetSeconds() == 100,
		"previous": got.GetPrevious().GetDigest() == "sha256:previous",
		"applying": got.GetApplying().GetPhase() == "importing" && got.GetApplying().GetLock() == "sha256:next" && got.GetApplying().GetDone() == 3 && got.GetApplying().GetTotal() == 4,
		"failed":   got.GetFailed().GetName() == "y.yaml" && got.GetFailed().GetError() == "no" && got.GetFailed().GetAt().GetSeconds() == 200,
		"running": got.GetImages()[0].GetState() == "running" && got.GetImages()[0].GetContainers() == 2 && got.GetImages()[0].GetRef() == "registry.example/app:1" &&
			got.GetImages()[0].GetDigest() == one.String(),
		"missing": got.GetImages()[1].GetState() == "missing" && got.GetImages()[1].GetMissing()[0].GetPlatform() == "linux/arm64" && got.GetImages()[1].GetReady()[0].GetPlatform() == "linux/amd64",
		"drifted": got.GetDrifted()[0].GetPod() == "web" && got.GetDrifted()[0].GetLocked() == one.String() && got.GetDrifted()[0].GetDigest() == two.String() && got.GetDrifted()[0].GetImageId() == two.String(),
		"extra":   got.GetExtra()[0].GetImageId() == two.String() && got.GetExtra()[0].GetDigest() == one.String() && got.GetExtra()[0].GetContainers() == 1,
	} {
		if !equal {
			t.Errorf("%s: got %v", what, got)
		}
	}
	c := got.GetCounts()
	if c.GetLocked() != 2 || c.GetReady() != 1 || c.GetRunning() != 1 || c.GetMissing() != 1 || c.GetDrifted() != 1 || c.GetExtra() != 1 {
		t.Errorf("counts: %v", c)
	}
	empty := lockStatus(apply.Status{Unreadable: errors.New("newer")}, apply.Usage{})
	if empty.GetLock() != nil || empty.GetPrevious() != nil || empty.GetApplying() != nil || empty.GetFailed() != nil || empty.GetUnreadable() != "newer" {
		t.Errorf("without a lock: %v", empty)
	}
}

func TestLockSummary(t *testing.T) {
	st, _ := statusOf(t)
	if got := LockSummary(st); got.GetDigest() != "sha256:current" || got.GetImages() != 2 || got.GetReady() != 1 || got.GetDriftedContainers() != 5 || got.GetFailed() != "no" {
		t.Errorf("got %v", got)
	}
	if got := LockSummary(apply.Status{}); got != nil {
		t.Errorf("without a lock: got %v", got)
	}
	for what, st := range map[string]apply.Status{
		"failed":     {Failed: &apply.Failure{Err: errors.New("x")}},
		"unreadable": {Unreadable: errors.New("x")},
	} {
		if got := LockSummary(st); got.GetFailed() != "x" || got.GetDigest() != "" || got.GetAppliedAt() != nil {
			t.Errorf("%s: got %v", what, got)
		}
	}
}

// TestLockEvent checks that an event has a bounded number of changes, and the number of all.
func TestLockEvent(t *testing.T) {
	r := apply.Result{Lock: "sha256:new", Previous: "sha256:old"}
	for i := range maxEventChanges + 1 {
		r.Changes = append(r.Changes, apply.Change{Ref: fmt.Sprint(i), Before: one, After: two})
	}
	e := LockEvent(r)
	if e.GetLock() != "sha256:new" || e.GetPrevious() != "sha256:old" || e.GetChanged() != maxEventChanges+1 || len(e.GetChanges()) != maxEventChanges ||
		e.GetChanges()[1].GetRef() != "1" || e.GetChanges()[1].GetBefore() != one.String() || e.GetChanges()[1].GetAfter() != two.String() {
		t.Errorf("got %v with %d changes", e, len(e.GetChanges()))
	}
}

// fakeLocks records what is applied.
type fakeLocks struct {
	Applier
	applied  []apply.Request
	detached func(context.Context) error
	refuse   error
}

func (l *fakeLocks) Apply(_ context.Context, r apply.Request) (apply.Result, error) {
	l.applied = append(l.applied, r)
	if r.Progress != nil {
		for range 3 {
			r.Progress(apply.Progress{Phase: apply.Preparing})
		}
		r.Progress(apply.Progress{Phase: apply.Switching})
	}
	return apply.Result{Lock: "sha256:new", Images: 7}, nil
}

func (l *fakeLocks) ApplyDropped(_ context.Context, r apply.Request, again bool) (apply.Result, error) {
	if !again {
		return apply.Result{}, errors.New("not again")
	}
	l.applied = append(l.applied, r)
	return apply.Result{Lock: "sha256:new"}, nil
}

func (l *fakeLocks) Detach(_ context.Context, run func(context.Context) error) error {
	l.detached = run
	return l.refuse
}

// fakeStream records what is sent.
type fakeStream struct{ sent []*api.ApplyResponse }

func (s *fakeStream) Send(r *api.ApplyResponse) error {
	s.sent = append(s.sent, r)
	return nil
}

func newLockServer() (*Server, *fakeLocks, *fakeStream) {
	locks := &fakeLocks{}
	return NewServer(locks), locks, &fakeStream{}
}

const lockText = `{"apiVersion":"imgpkg.carvel.dev/v1alpha1","kind":"ImagesLock","images":[{"image":"registry.example/app@sha256:` +
	`0000000000000000000000000000000000000000000000000000000000000000"}]}`

func TestApplyRequest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte(lockText), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request *api.ApplyRequest
		name    string
		fails   bool
	}{
		"lock":             {request: &api.ApplyRequest{Lock: []byte(lockText), Name: "/tmp/dir/b.yaml"}, name: "b.yaml"},
		"long name":        {request: &api.ApplyRequest{Lock: []byte(lockText), Name: strings.Repeat("x", 10_000)}, name: imagepin.Bound(strings.Repeat("x", 10_000), maxName)},
		"path":             {request: &api.ApplyRequest{Path: path}, name: "a.yaml"},
		"drop directories": {request: &api.ApplyRequest{Dropped: true}},
		"nothing":          {request: &api.ApplyRequest{}, fails: true},
		"two of them":      {request: &api.ApplyRequest{Lock: []byte(lockText), Path: path}, fails: true},
		"relative path":    {request: &api.ApplyRequest{Path: "a.yaml"}, fails: true},
		"no lock":          {request: &api.ApplyRequest{Lock: []byte("kind: List")}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, locks, stream := newLockServer()
			c.request.Handlers, c.request.BytesPerSecond = []string{"kata"}, 5
			err := s.Apply(t.Context(), c.request, stream.Send)
			if c.fails {
				if !errdefs.IsInvalidArgument(err) {
					t.Errorf("got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r := locks.applied[0]; r.Name != c.name || r.Handlers[0] != "kata" || r.BytesPerSecond != 5 || r.DryRun != c.request.GetDryRun() || r.Progress == nil {
				t.Errorf("applied %+v", r)
			}
			if last := stream.sent[len(stream.sent)-1]; last.GetResult() == nil {
				t.Errorf("the last message is %v", last)
			}
		})
	}
}

// TestApplyDetached checks that a detached apply answers at once, sends no progress later, and that its file is closed once,
// also if another apply runs.
func TestApplyDetached(t *testing.T) {
	for name, c := range map[string]struct {
		refuse error
		closed int
	}{"detached": {nil, 0}, "refused": {errdefs.ErrFailedPrecondition, 1}} {
		t.Run(name, func(t *testing.T) {
			s, locks, _ := newLockServer()
			locks.refuse = c.refuse
			closed := 0
			run := func(ctx context.Context) (apply.Result, error) {
				return locks.Apply(ctx, apply.Request{})
			}
			err := s.detach(t.Context(), run, func() { closed++ })
			if !errors.Is(err, c.refuse) || closed != c.closed || len(locks.applied) != 0 {
				t.Fatalf("got %v, closed %d times, applied %d", err, closed, len(locks.applied))
			}
			if c.refuse != nil {
				return
			}
			if err := locks.detached(t.Context()); err != nil || closed != 1 || len(locks.applied) != 1 {
				t.Errorf("got %v, closed %d times, applied %d", err, closed, len(locks.applied))
			}
		})
	}
	s, locks, stream := newLockServer()
	if err := s.Apply(t.Context(), &api.ApplyRequest{Lock: []byte(lockText), Detach: true}, stream.Send); err != nil || len(stream.sent) != 0 {
		t.Fatalf("got %v, sent %v", err, stream.sent)
	}
	if err := locks.detached(t.Context()); err != nil || len(stream.sent) != 0 || locks.applied[0].Progress != nil {
		t.Errorf("got %v, sent %v", err, stream.sent)
	}
}
