package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func imagepinError(err error) (e *imagepin.Error, ok bool) { return e, errors.As(err, &e) }

func TestPlan(t *testing.T) {
	sandbox := Settings{SandboxImage: "registry.example/pause:3"}
	three := []runtimeplatform.Handler{{Name: "runc", Snapshotter: "native"}, {Name: "kata", Snapshotter: "second"}, {Name: "arm", Platform: "linux/arm64", Snapshotter: "native"}}
	native := image(t, "app:1", "one")
	native.Platforms = map[string]digest.Digest{"linux/s390x": native.Ref.Digest()}
	for name, c := range map[string]struct {
		images   []lock.Image
		handlers []string
		settings Settings
		want     []string
		reason   imagepin.Reason
	}{
		"platforms of the lock": {
			images: []lock.Image{image(t, "app:1", "one", "linux/amd64")},
			want:   []string{"app@one linux/amd64 on native", "app@one linux/amd64 on second"},
		},
		"only a foreign platform": {images: []lock.Image{image(t, "app:1", "one", "linux/arm64")}, want: []string{"app@one linux/arm64 on native"}},
		"no platform of the node": {images: []lock.Image{image(t, "app:1", "one", "linux/s390x")}, reason: imagepin.NoMatchingPlatform},
		"a manifest without an index is accepted for the node's platform": {
			images: []lock.Image{native}, want: []string{"app@one linux/amd64 on native", "app@one linux/amd64 on second"},
		},
		"platforms are not known": {
			images: []lock.Image{image(t, "app:1", "one")},
			want:   []string{"app@one linux/amd64 on native", "app@one linux/amd64 on second", "app@one linux/arm64 on native"},
		},
		"handlers":        {images: []lock.Image{image(t, "app:1", "one")}, handlers: []string{"kata", "kata"}, want: []string{"app@one linux/amd64 on second"}},
		"unknown handler": {images: []lock.Image{image(t, "app:1", "one")}, handlers: []string{"none"}, reason: imagepin.UnknownRuntimeHandler},
		"sandbox image": {
			images: []lock.Image{image(t, "pause:3", "pause")}, handlers: []string{"runc"}, settings: sandbox,
			want: []string{"pause@pause linux/amd64 on native", "pause@pause linux/amd64 on second"},
		},
		"sandbox image with a second tag": {
			images: []lock.Image{image(t, "pause:2", "pause"), image(t, "pause:3", "pause")}, handlers: []string{"runc"}, settings: sandbox,
			want: []string{"pause@pause linux/amd64 on native", "pause@pause linux/amd64 on second"},
		},
		"only by digest": {
			images: []lock.Image{image(t, "app", "one"), image(t, "app", "two")}, handlers: []string{"runc"},
			want: []string{"app@one linux/amd64 on native", "app@two linux/amd64 on native"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, three...)
			e.settings = c.settings
			p, err := e.plan(e.ctx, Request{Lock: lockOf(t, c.images...), Handlers: c.handlers})
			if c.reason != "" {
				if !hasReason(err, c.reason) {
					t.Fatalf("got %v, want %s", err, c.reason)
				}
				return
			}
			noError(t, err)
			var got []string
			for _, j := range p.jobs {
				got = append(got, familiar(j.image.Ref)+" "+j.runtime.Target.String())
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestCounts checks that a result counts images as the status does, each once for all targets.
func TestCounts(t *testing.T) {
	e := newEnv(t, handlers...)
	l := lockOf(t, image(t, "app:1", "one", "linux/amd64", "linux/arm64"), image(t, "web:1", "two", "linux/amd64"))
	for _, want := range []Result{{Images: 3, Locked: 2, MadeReady: 2}, {Locked: 2}} {
		r, err := e.Apply(e.ctx, Request{Lock: l})
		noError(t, err)
		if r.Images != want.Images || r.Locked != want.Locked || r.MadeReady != want.MadeReady || len(e.Status().Images) != r.Locked {
			t.Errorf("got %d images for targets, %d of %d made ready, want %+v", r.Images, r.MadeReady, r.Locked, want)
		}
	}
}

// TestApply checks the switch, the order of locks and what is retained, through an apply of each kind.
func TestApply(t *testing.T) {
	e := newEnv(t, handlers...)
	apply := func(text string) Result {
		t.Helper()
		r, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64")), Name: text + ".yaml"})
		noError(t, err)
		return r
	}
	first := apply("one")
	if got := e.took(); !slices.Equal(got, []string{"app:1 linux/amd64 on native", "app@one linux/amd64 on native"}) {
		t.Errorf("made %q", got)
	}
	second := apply("two")
	if second.Previous != first.Lock || e.locked("app:1") != "two" || !slices.Equal(e.retained(), []string{"one", "two"}) {
		t.Errorf("second: %+v, locked %s, retained %q", second, e.locked("app:1"), e.retained())
	}
	if again := apply("two"); again.Previous != first.Lock || len(again.Changes) != 0 || again.Images != 0 {
		t.Errorf("the same lock again: %+v", again)
	}
	apply("three")
	if got := e.retained(); !slices.Equal(got, []string{"three", "two"}) {
		t.Errorf("retained after the third: %q", got)
	}
	back, err := e.Rollback(e.ctx, Request{})
	noError(t, err)
	if back.Lock != second.Lock || e.locked("app:1") != "two" || e.Status().Current.Name != "two.yaml" {
		t.Errorf("rollback: %+v, %+v", back, e.Status().Current)
	}
	if len(e.notified) != 5 {
		t.Errorf("%d notifications", len(e.notified))
	}
	if _, err = e.Remove(e.ctx, true); err != nil || !slices.Equal(e.retained(), []string{"two"}) {
		t.Errorf("remove the previous one: %v, retained %q", err, e.retained())
	}
	if _, err = e.Rollback(e.ctx, Request{}); !hasReason(err, imagepin.UnknownLock) {
		t.Errorf("rollback without a previous one: %v", err)
	}
	removed, err := e.Remove(e.ctx, false)
	if err != nil || removed.Lock != "" || len(e.retained()) != 0 || len(removed.Changes) != 1 || removed.Changes[0].After != "" {
		t.Errorf("remove: %+v, %v, retained %q", removed, err, e.retained())
	}
	if _, err = e.Remove(e.ctx, false); !hasReason(err, imagepin.UnknownLock) {
		t.Errorf("remove without a lock: %v", err)
	}
}

// TestFailedApply checks that a failed apply changes neither the pins nor what is retained, and is in the status.
func TestFailedApply(t *testing.T) {
	refused := &imagepin.Error{Reason: imagepin.ImageVerificationFailed, Class: errdefs.ErrPermissionDenied}
	for name, c := range map[string]struct {
		prepare func(e *env)
		want    error
	}{
		"a registry is down": {prepare: func(e *env) {
			e.machine.make = func(_ context.Context, l pull.Locked) error {
				if l.Ref.(reference.Digested).Digest() == root("new tool").Digest {
					return errdefs.ErrUnavailable
				}
				return nil
			}
		}, want: errdefs.ErrUnavailable},
		"disk full": {prepare: func(e *env) {
			e.machine.make = func(_ context.Context, l pull.Locked) error {
				if l.Runtime.Target.Platform == "linux/arm64" {
					return syscall.ENOSPC
				}
				return nil
			}
		}, want: errdefs.ErrResourceExhausted},
		"not published": {prepare: func(e *env) { e.machine.make = func(_ context.Context, l pull.Locked) error { return noMatch(l) } }, want: errdefs.ErrNotFound},
		"a verifier refuses": {prepare: func(e *env) {
			e.machine.entries[imagepin.Key{Ref: "elsewhere"}] = imagepin.Entry{Root: root("new tool")} // its descriptor is known
			e.machine.verify = func(string) error { return refused }
		}, want: refused},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, handlers...)
			_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "old"))})
			noError(t, err)
			c.prepare(e)
			before := len(e.entries)
			_, err = e.Apply(e.ctx, Request{Name: "next.yaml", Lock: lockOf(t, image(t, "app:1", "new"), image(t, "tool:1", "new tool"))})
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if e.locked("app:1") != "old" || !slices.Equal(e.retained(), []string{"old"}) {
				t.Errorf("locked %s, retained %q", e.locked("app:1"), e.retained())
			}
			st := e.Status()
			if st.Failed == nil || st.Failed.Name != "next.yaml" || st.Applying != nil {
				t.Errorf("status: %+v", st)
			}
			if errdefs.IsResourceExhausted(err) && len(e.entries) != before {
				t.Errorf("%d images, want %d as before", len(e.entries), before)
			}
			e.machine.make, e.machine.verify = nil, nil
			_, err = e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "new"))})
			if noError(t, err); e.Status().Failed != nil {
				t.Error("the failure is still in the status")
			}
		})
	}
}

// TestVerifiedFirst checks that the verifiers are called for each reference before anything is made.
func TestVerifiedFirst(t *testing.T) {
	e := newEnv(t, handlers...)
	known := image(t, "app:1", "known", "linux/amd64")
	e.entries[imagepin.Key{Ref: "elsewhere"}] = imagepin.Entry{Root: root("known")}
	r := Request{Lock: lockOf(t, known, image(t, "app:2", "known", "linux/amd64"), image(t, "tool:1", "unknown", "linux/amd64"), image(t, "tool:2", "unknown", "linux/amd64"))}
	e.machine.make = func(_ context.Context, l pull.Locked) error {
		if want := []string{"registry.example/app:1", "registry.example/app:2"}; !slices.Equal(e.verified, want) {
			t.Errorf("verified %q before %s is made", e.verified, l.Ref)
		}
		if _, digested := l.Ref.(reference.Digested); digested && l.Root.Digest == "" {
			var as []string
			for _, ref := range l.VerifyAs {
				as = append(as, ref.String())
			}
			if !slices.Equal(as, []string{"registry.example/tool:1", "registry.example/tool:2"}) {
				t.Errorf("%s is verified as %q", l.Ref, as)
			}
		}
		return nil
	}
	_, err := e.Apply(e.ctx, r)
	noError(t, err)
}

func TestDryRun(t *testing.T) {
	e := newEnv(t, handlers...)
	r, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64")), DryRun: true})
	noError(t, err)
	if r.Images != 1 || len(r.Changes) != 1 || e.locked("app:1") != "" || len(e.took()) != 0 || len(e.retained()) != 0 {
		t.Errorf("result %+v, locked %q", r, e.locked("app:1"))
	}
	if _, err = e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/s390x")), DryRun: true}); err == nil || e.Status().Failed != nil {
		t.Errorf("got %v, status %+v", err, e.Status().Failed)
	}
}

// TestTagFails checks that a lock whose tag cannot be recorded is applied, and that a repair records the tag.
func TestTagFails(t *testing.T) {
	e := newEnv(t, handlers...)
	e.machine.make = func(_ context.Context, l pull.Locked) error {
		if _, digested := l.Ref.(reference.Digested); !digested {
			return errdefs.ErrUnavailable
		}
		return nil
	}
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64"))})
	if noError(t, err); e.Status().Failed != nil || e.locked("app:1") != "one" || len(e.notified) != 1 {
		t.Errorf("status %+v", e.Status())
	}
	e.machine.make = nil
	e.took()
	noError(t, e.complete(e.ctx))
	if got := e.took(); !slices.Equal(got, []string{"app:1 linux/amd64 on native"}) {
		t.Errorf("repaired %q", got)
	}
}

// index writes an index of one platform to the node, and returns an image of a lock with its digest.
func (e *env) index(t *testing.T, platform string) lock.Image {
	blobs := make(ctdtest.Blobs)
	img := blobs.Image(platform, "app", nil)
	index := blobs.Index(img.Manifest)
	e.node.Write(e.ctx, t, blobs)
	texts.Store(index.Digest, "index")
	i := image(t, "app:1", "other")
	ref, err := imagepin.ParseReference("registry.example/app@" + index.Digest.String())
	noError(t, err)
	i.Ref = ref.(reference.Canonical)
	e.machine.entries[imagepin.Key{Ref: "elsewhere"}] = imagepin.Entry{Root: index} // its descriptor is known
	return i
}

// TestMissingPlatform checks that an image that is not published for each target is applied, and that a repair does not try the
// missing target again, but does so for a target that is lost.
func TestMissingPlatform(t *testing.T) {
	e := newEnv(t, handlers...)
	e.machine.make = func(_ context.Context, l pull.Locked) error {
		if l.Runtime.Target.Platform != "linux/amd64" {
			return noMatch(l)
		}
		return nil
	}
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, e.index(t, "linux/amd64"))})
	noError(t, err)
	if st := e.Status(); !isReady(st) || len(st.Images[0].Ready) != 1 {
		t.Errorf("status %+v", st.Images)
	}
	e.took()
	noError(t, e.complete(e.ctx))
	if got := e.took(); len(got) != 0 {
		t.Errorf("a repair without work tried %q", got)
	}
	clear(e.machine.entries)
	if isReady(e.Status()) {
		t.Error("an image that is gone is ready")
	}
	noError(t, e.complete(e.ctx))
	if got := e.took(); !slices.Equal(got, []string{"app:1 linux/amd64 on native", "app@index linux/amd64 on native"}) {
		t.Errorf("the repair of a lost image made %q", got)
	}
}

// TestRemovedHandler checks that a lock for a handler that was removed from the configuration is repaired and rolled back.
func TestRemovedHandler(t *testing.T) {
	second := runtimeplatform.Handler{Name: "kata", Snapshotter: "second"}
	e := newEnv(t, append(slices.Clone(handlers), second)...)
	for _, text := range []string{"one", "two"} {
		_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64")), Handlers: []string{"kata", "runc"}})
		noError(t, err)
	}
	e.configure(t, handlers...)
	clear(e.machine.entries)
	e.took()
	noError(t, e.complete(e.ctx))
	if got := e.took(); !slices.Equal(got, []string{"app:1 linux/amd64 on native", "app@two linux/amd64 on native"}) || !isReady(e.Status()) {
		t.Errorf("made %q, status %+v", got, e.Status().Images)
	}
	_, err := e.Rollback(e.ctx, Request{})
	if noError(t, err); e.locked("app:1") != "one" || !slices.Equal(e.Status().Current.Handlers, []string{"kata", "runc"}) {
		t.Errorf("rolled back to %+v", e.Status().Current)
	}
	if _, err = e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "two")), Handlers: []string{"kata"}}); !hasReason(err, imagepin.UnknownRuntimeHandler) {
		t.Errorf("apply for a handler that is not configured: %v", err)
	}
	// No handler of the lock is left: all are used.
	noError(t, e.applied.Write(e.ctx, applied.State{Current: &applied.Applied{
		Lock: e.Status().Current.Lock, Digest: e.Status().Current.Digest, Roots: e.Status().Current.Roots, Handlers: []string{"kata"},
	}}))
	clear(e.machine.entries)
	e.took()
	if noError(t, e.complete(e.ctx)); len(e.took()) != 2 {
		t.Error("the image was not made ready")
	}
}

// TestHandlersOfLock checks that the handlers of an apply are those of the next ones, until it is for all again.
func TestHandlersOfLock(t *testing.T) {
	kata := runtimeplatform.Handler{Name: "kata", Snapshotter: "second"}
	e := newEnv(t, append(slices.Clone(handlers), kata)...)
	n := 0
	apply := func(want []string, images int, r Request) {
		t.Helper()
		n++
		r.Lock = lockOf(t, image(t, "app:1", fmt.Sprint("image ", n), "linux/amd64", "linux/arm64"))
		got, err := e.Apply(e.ctx, r)
		noError(t, err)
		if got.Images != images || !slices.Equal(got.Handlers, want) || !slices.Equal(e.Status().Current.Handlers, want) || !isReady(e.Status()) {
			t.Errorf("apply %d: %d images for %q, stored for %q", n, got.Images, got.Handlers, e.Status().Current.Handlers)
		}
	}
	apply(nil, 3, Request{})
	apply([]string{"kata"}, 1, Request{Handlers: []string{"kata"}})
	apply([]string{"kata"}, 1, Request{})
	e.configure(t, handlers...) // kata is not configured for a time
	apply([]string{"kata"}, 2, Request{})
	e.configure(t, append(slices.Clone(handlers), kata)...)
	apply([]string{"kata"}, 1, Request{})
	apply([]string{"runc"}, 1, Request{Handlers: []string{"runc"}})
	apply([]string{"runc", "kata"}, 2, Request{Handlers: []string{"", "kata", "kata", "runc"}})
	apply(nil, 3, Request{AllHandlers: true})
	apply(nil, 3, Request{})
	apply([]string{"kata"}, 1, Request{Handlers: []string{"kata"}})
	_, err := e.Rollback(e.ctx, Request{}) // to a lock for all
	if noError(t, err); e.Status().Current.Handlers != nil || !isReady(e.Status()) {
		t.Errorf("rolled back to %+v", e.Status().Current)
	}
	apply([]string{"kata"}, 1, Request{Handlers: []string{"kata"}})
	_, err = e.Remove(e.ctx, false)
	noError(t, err)
	apply(nil, 3, Request{})
}

// TestRollbackToBundle checks that a lock that came from a bundle does so again after a rollback: no registry is asked.
func TestRollbackToBundle(t *testing.T) {
	e := newEnv(t, handlers...)
	l := lockOf(t, image(t, "app:1", "one", "linux/amd64"))
	id, err := l.Digest()
	noError(t, err)
	noError(t, e.applied.Write(e.ctx, applied.State{Current: &applied.Applied{
		Lock: l, Digest: id, Roots: map[digest.Digest]ocispec.Descriptor{root("one").Digest: root("one")}, Bundle: true,
	}}))
	_, err = e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "two", "linux/amd64"))})
	noError(t, err)
	e.machine.made = nil
	_, err = e.Rollback(e.ctx, Request{})
	noError(t, err)
	clear(e.machine.entries)
	noError(t, e.complete(e.ctx))
	if !e.Status().Current.Bundle || len(e.machine.made) != 4 {
		t.Errorf("lock %+v, made %d", e.Status().Current, len(e.machine.made))
	}
	for _, l := range e.machine.made {
		if l.From == pull.FromRegistry {
			t.Errorf("a registry may be asked for %s", l.Ref)
		}
	}
	// Only if another tool has removed the content.
	clear(e.machine.entries)
	e.machine.made = nil
	e.machine.make = func(_ context.Context, l pull.Locked) error {
		if l.From != pull.FromRegistry && len(e.machine.made) == 1 {
			return errdefs.ErrNotFound
		}
		return nil
	}
	if noError(t, e.complete(e.ctx)); (e.machine.made[0].From == pull.FromRegistry) == (e.machine.made[1].From == pull.FromRegistry) {
		t.Errorf("made %+v", e.machine.made)
	}
}

// TestRetainedNeedsNoRegistry checks that the content of the node's locks is used for a rollback, a repair and the same lock again, and
// that a registry is asked only for what has been lost. The images stay pulled ones.
func TestRetainedNeedsNoRegistry(t *testing.T) {
	for name, again := range map[string]func(e *env) error{
		"rollback": func(e *env) error { _, err := e.Rollback(e.ctx, Request{}); return err },
		"repair":   func(e *env) error { return e.complete(e.ctx) },
		"the current lock": func(e *env) error {
			_, err := e.Apply(e.ctx, Request{Lock: e.Status().Current.Lock})
			return err
		},
		"the lock before": func(e *env) error {
			_, err := e.Apply(e.ctx, Request{Lock: e.Status().Previous.Lock})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, handlers...)
			for _, text := range []string{"one", "two"} {
				_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64"))})
				noError(t, err)
			}
			for _, lost := range []error{nil, errdefs.ErrNotFound, &imagepin.Error{Reason: imagepin.ContentCorrupt, Class: errdefs.ErrFailedPrecondition}} {
				clear(e.machine.entries) // by kubelet, while the registry is down
				e.machine.made = nil
				e.machine.make = func(_ context.Context, l pull.Locked) error {
					if l.From != pull.FromRegistry {
						return lost
					}
					return nil
				}
				noError(t, again(e))
				var asked, made int
				for _, l := range e.machine.made {
					if _, digested := l.Ref.(reference.Digested); digested {
						if made++; l.From == pull.FromRegistry {
							asked++
						}
					}
					if l.From == pull.FromBundle {
						t.Errorf("%s is imported", l.Ref)
					}
				}
				if want := map[bool][2]int{true: {1, 0}, false: {2, 1}}[lost == nil]; [2]int{made, asked} != want || e.Status().Current.Bundle {
					t.Errorf("lost: %v: %d attempts, %d with a registry, want %v", lost, made, asked, want)
				}
			}
		})
	}
}

// TestRepairOnFullDisk checks that a repair removes nothing that it has made: it belongs to the lock.
func TestRepairOnFullDisk(t *testing.T) {
	e := newEnv(t, handlers...)
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64"), image(t, "tool:1", "two", "linux/amd64"))})
	noError(t, err)
	clear(e.machine.entries)
	e.machine.make = func(_ context.Context, l pull.Locked) error {
		if l.Root.Digest == root("two").Digest {
			return syscall.ENOSPC
		}
		return nil
	}
	if err := e.complete(e.ctx); !errors.Is(err, syscall.ENOSPC) || len(e.removed) != 0 || len(e.retained()) != 2 {
		t.Errorf("got %v, removed %v, retained %q", err, e.removed, e.retained())
	}
}

func TestNextState(t *testing.T) {
	a, b := &applied.Applied{Digest: "a"}, &applied.Applied{Digest: "b"}
	for _, c := range []struct {
		last, want applied.State
		now        *applied.Applied
		dropped    digest.Digest
	}{
		{now: a, want: applied.State{Current: a}},
		{last: applied.State{Current: a}, now: b, want: applied.State{Current: b, Previous: a}},
		{last: applied.State{Current: b, Previous: a}, now: b, want: applied.State{Current: b, Previous: a}},
		{last: applied.State{Current: b, Previous: a}, now: a, want: applied.State{Current: a, Previous: b}},
		{last: applied.State{Current: a, Dropped: "x"}, now: b, want: applied.State{Current: b, Previous: a, Dropped: "x"}},
		{last: applied.State{Current: a, Dropped: "x"}, now: b, dropped: "y", want: applied.State{Current: b, Previous: a, Dropped: "y"}},
	} {
		if got := nextState(c.last, Request{dropped: c.dropped}, c.now); got != c.want {
			t.Errorf("after %+v: got %+v, want %+v", c.last, got, c.want)
		}
	}
}

func TestChanges(t *testing.T) {
	current := &applied.Applied{Lock: lockOf(t, image(t, "same:1", "s"), image(t, "moved:1", "old"), image(t, "gone:1", "g"), image(t, "raw", "one"))}
	next := lockOf(t, image(t, "same:1", "s"), image(t, "moved:1", "new"), image(t, "fresh:1", "f"), image(t, "raw", "one"), image(t, "raw", "two"))
	want := []Change{
		{Ref: "registry.example/fresh:1", After: root("f").Digest},
		{Ref: "registry.example/gone:1", Before: root("g").Digest},
		{Ref: "registry.example/moved:1", Before: root("old").Digest, After: root("new").Digest},
		{Ref: "registry.example/raw@" + root("two").Digest.String(), After: root("two").Digest},
	}
	if got := changes(current, next); !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := changes(nil, nil); got != nil {
		t.Errorf("nothing: got %+v", got)
	}
}

func TestUsage(t *testing.T) {
	e := newEnv(t, handlers...)
	if u, err := e.Usage(e.ctx); err != nil || len(u.Extra) != 0 {
		t.Errorf("without a lock: %+v, %v", u, err)
	}
	_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", "one", "linux/amd64"), image(t, "raw", "two", "linux/amd64"))})
	noError(t, err)
	target := runtimeplatform.Target{Platform: platforms.Format(platforms.MustParse("linux/amd64")), Snapshotter: "native"}
	e.settings.SandboxImage = "registry.example/pause:3"
	for ref, text := range map[string]string{"registry.example/pause:3": "pause", "registry.example/old:1": "old", "registry.example/other:1": "one", "registry.example/app@" + root("before").Digest.String(): "before"} {
		k := imagepin.Key{Ref: ref, Target: target}
		e.machine.entries[k] = imagepin.Entry{Key: k, Root: root(text), ImageID: imageID(root(text).Digest)}
	}
	id := func(text string) digest.Digest { return imageID(root(text).Digest) }
	e.containers = []Container{
		{Name: "right", Ref: "registry.example/app:1", ImageID: id("one")},
		{Name: "by ID", ImageID: id("one")},
		{Name: "drifted", Ref: "registry.example/app:1", ImageID: id("old")},
		{Name: "before the lock", Ref: "registry.example/app:1", ImageID: id("before")},
		{Name: "not locked", Ref: "registry.example/old:1", ImageID: id("old")},
		{Name: "by digest", Ref: "registry.example/raw@" + root("two").Digest.String(), ImageID: id("two")},
	}
	u, err := e.Usage(e.ctx)
	noError(t, err)
	if len(u.Drifted) != 2 || u.Drifted[0].Name != "drifted" || u.Drifted[0].Locked != root("one").Digest || u.Drifted[0].Digest != "" {
		t.Errorf("drifted %+v", u.Drifted) // the node knows the image of another repository only
	}
	if len(u.Drifted) != 2 || u.Drifted[1].Digest != root("before").Digest {
		t.Errorf("drifted %+v", u.Drifted)
	}
	if len(u.Extra) != 2 || u.Extra[1].Containers != 2 || !slices.Equal(u.Extra[1].Refs, []string{"registry.example/old:1"}) || u.Extra[1].Digest != root("old").Digest {
		t.Errorf("extra %+v", u.Extra)
	}
	if one, two := u.Running[image(t, "app", "one").Ref.String()], u.Running[image(t, "raw", "two").Ref.String()]; one != 2 || two != 1 {
		t.Errorf("running %v", u.Running)
	}
	noError(t, e.countDrift(e.ctx))
	if got := e.Status().DriftedContainers; got != 2 {
		t.Errorf("%d drifted containers", got)
	}
	_, err = e.Remove(e.ctx, false)
	noError(t, err)
	if noError(t, e.countDrift(e.ctx)); e.Status().DriftedContainers != 0 {
		t.Error("drift without a lock")
	}
}

// TestUnsyncedImages checks that the node keeps its lock if the images of the next one cannot be made durable, also if they are all
// ready.
func TestUnsyncedImages(t *testing.T) {
	e := newEnv(t, handlers...)
	apply := func(text string) error {
		_, err := e.Apply(e.ctx, Request{Lock: lockOf(t, image(t, "app:1", text, "linux/amd64")), Name: text + ".yaml"})
		return err
	}
	for _, text := range []string{"one", "two"} {
		noError(t, apply(text))
	}
	for _, text := range []string{"one", "three"} {
		e.sync = errors.New("input/output error")
		e.synced = nil
		if err := apply(text); !errors.Is(err, e.sync) || len(e.synced) == 0 {
			t.Errorf("%s: got %v, want %v, synced %+v", text, err, e.sync, e.synced)
		}
		if e.locked("app:1") != "two" || e.Status().Current.Name != "two.yaml" {
			t.Errorf("%s: locked %s by %+v", text, e.locked("app:1"), e.Status().Current)
		}
	}
	e.sync = nil
	noError(t, apply("three"))
}

// isReady reports whether all images of the lock are ready.
func isReady(s Status) bool {
	return !slices.ContainsFunc(s.Images, func(i ImageStatus) bool { return len(i.Missing) > 0 })
}
