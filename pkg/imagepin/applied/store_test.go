package applied

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func root(text string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: int64(len(text))}
}

// lockOf returns an applied lock of images by reference: a tag, or "repository@" for an image without one.
func lockOf(t testing.TB, of map[string]string) *Applied {
	t.Helper()
	a := &Applied{Name: "test.yaml", At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Roots: make(map[digest.Digest]ocispec.Descriptor)}
	var all []lock.Image
	for name, text := range of {
		d := root(text)
		a.Roots[d.Digest] = d
		repository, byDigest := strings.CutSuffix(name, "@")
		i := lock.Image{Platforms: map[string]digest.Digest{"linux/amd64": digest.FromString(text + " amd64")}}
		if !byDigest {
			i.ID, repository = name, name[:strings.LastIndex(name, ":")]
		}
		ref, err := imagepin.ParseReference(repository + "@" + d.Digest.String())
		noError(t, err)
		i.Ref = ref.(reference.Canonical)
		all = append(all, i)
	}
	var err error
	a.Lock, err = lock.New(all)
	noError(t, err)
	a.Digest, err = a.Lock.Digest()
	noError(t, err)
	return a
}

// env is a store on a real metadata database, with the pins of a node.
type env struct {
	*Store
	ctx  context.Context
	node *ctdtest.Node
	pins *pin.Store

	mu       sync.Mutex
	synced   []digest.Digest // by calls to Retain since the last look
	retained []digest.Digest // what leases retain
	retain   error
	sync     error
}

func newEnv(t *testing.T) *env {
	n := ctdtest.New(t)
	e := &env{node: n, ctx: n.Context(t)}
	e.restart(t)
	return e
}

// restart replaces what a process has in memory.
func (e *env) restart(t *testing.T) {
	e.pins = pin.New(pin.Config{Images: e.node.Images, Namespaces: ctdtest.Namespaces{DB: e.node.DB}})
	noError(t, e.pins.Load(e.ctx))
	e.Store = New(e.config(e.pins))
}

func (e *env) config(pins Pins) Config {
	return Config{
		Images: e.node.Images, Content: e.node.Content, Leases: e.node.Leases, Namespaces: ctdtest.Namespaces{DB: e.node.DB}, Pins: pins,
		Retain: func(_ context.Context, roots ...digest.Digest) error {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.synced = append(e.synced, roots...)
			return e.retain
		},
		Retained: func(context.Context) ([]digest.Digest, error) { return e.retained, nil },
		Sync:     func(context.Context) error { return e.sync },
	}
}

func (e *env) inPins() context.Context { return namespaces.WithNamespace(e.ctx, pin.Namespace) }

// record returns the record of the lock.
func (e *env) record(t *testing.T) images.Image {
	t.Helper()
	img, err := e.node.Images.Get(e.inPins(), pin.LockRecord)
	noError(t, err)
	return img
}

// locked returns the digest that the pins of the lock have for a reference, or "".
func (e *env) locked(ref string) digest.Digest {
	p, _ := e.pins.OfLock(ref)
	return p.Root.Digest
}

const app = "registry.example/app:v1"

// TestCopies checks which repositories the lock has images in for tags of other repositories.
func TestCopies(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	a := lockOf(t, map[string]string{app: "one", "registry.example/tool:v1": "two"})
	for n, i := range a.Lock.Images {
		if i.ID == app {
			ref, err := imagepin.ParseReference("copies.example/private@" + i.Ref.Digest().String())
			noError(t, err)
			a.Lock.Images[n].Ref = ref.(reference.Canonical)
		}
	}
	noError(t, e.Write(e.ctx, State{Current: a}))
	e.restart(t)
	noError(t, e.Load(e.ctx))
	for _, c := range []struct {
		repository, digest string
		want               string
	}{
		{"registry.example/app:v1", "one", "[copies.example/private]"}, {"registry.example/app", "one", "[copies.example/private]"},
		{"registry.example/app:v1", "two", "[]"}, {"registry.example/tool:v1", "two", "[]"}, {"copies.example/private", "one", "[]"},
	} {
		ref, err := reference.ParseNormalizedNamed(c.repository)
		noError(t, err)
		if got := fmt.Sprint(e.Copies(ref, root(c.digest).Digest)); got != c.want {
			t.Errorf("%s at %s: got %s, want %s", c.repository, c.digest, got, c.want)
		}
	}
	noError(t, e.Write(e.ctx, State{Previous: a}))
	ref, err := reference.ParseNormalizedNamed(app)
	noError(t, err)
	if got := e.Copies(ref, root("one").Digest); len(got) != 0 {
		t.Errorf("without a lock: %v", got)
	}
}

func TestStateRoundTrip(t *testing.T) {
	a := lockOf(t, map[string]string{app: "one", "registry.example/tool@": "two"})
	a.Bundle, a.Handlers = true, []string{"kata"}
	b := lockOf(t, map[string]string{app: "three"})
	data, err := State{Current: a, Previous: b, Dropped: "sha256:d"}.marshal()
	noError(t, err)
	got, err := unmarshal(data)
	noError(t, err)
	again, err := got.marshal()
	noError(t, err)
	if !bytes.Equal(data, again) {
		t.Errorf("written again after it was read:\n%s\nwas:\n%s", again, data)
	}
	c := got.Current
	if c.Digest != a.Digest || !c.Bundle || !slices.Equal(c.Handlers, a.Handlers) || c.Name != a.Name || len(c.Roots) != 2 ||
		!c.At.Equal(a.At.Truncate(time.Second)) || got.Previous.Digest != b.Digest || got.Dropped != "sha256:d" {
		t.Errorf("read %+v and %+v", got.Current, got.Previous)
	}
	data, err = State{}.marshal()
	noError(t, err)
	if got, err = unmarshal(data); err != nil || got.Current != nil || got.Previous != nil {
		t.Errorf("no lock: got %+v, %v", got, err)
	}
}

func TestUnmarshalRefuses(t *testing.T) {
	a := lockOf(t, map[string]string{app: "one"})
	good, err := State{Current: a}.marshal()
	noError(t, err)
	for name, c := range map[string]struct {
		data  []byte
		class func(error) bool
	}{
		"no JSON":          {good[:len(good)/2], errdefs.IsInvalidArgument},
		"newer version":    {bytes.Replace(good, []byte(`"version":1`), []byte(`"version":2`), 1), errdefs.IsNotImplemented},
		"no lock":          {bytes.Replace(good, []byte("ImagesLock"), []byte("ImagesLook"), 1), errdefs.IsInvalidArgument},
		"other descriptor": {bytes.Replace(good, []byte(`"digest":"sha256:`+root("one").Digest.Encoded()[:4]), []byte(`"digest":"sha256:xxxx`), 1), errdefs.IsInvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			if bytes.Equal(c.data, good) {
				t.Fatal("nothing was changed")
			}
			if _, err := unmarshal(c.data); !c.class(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWriteIsLoadedAfterRestart(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	if e.Digest() != "" || len(e.pins.List()) != 0 {
		t.Fatalf("a node without a lock has %q, %v", e.Digest(), e.pins.List())
	}
	first := lockOf(t, map[string]string{app: "one", "registry.example/tool@": "two"})
	noError(t, e.Write(e.ctx, State{Current: first}))
	second := lockOf(t, map[string]string{app: "three"})
	noError(t, e.Write(e.ctx, State{Current: second, Previous: first}))
	for range 2 {
		if got := e.locked(app); got != root("three").Digest {
			t.Errorf("locked digest: got %s", got)
		}
		want := []digest.Digest{root("one").Digest, root("two").Digest, root("three").Digest}
		slices.Sort(want)
		if got := e.pins.Retained(); !slices.Equal(got, want) {
			t.Errorf("retained %v, want %v", got, want)
		}
		for d, want := range map[digest.Digest]bool{
			root("three").Digest: true, digest.FromString("three amd64"): true, root("one").Digest: false, digest.FromString("one amd64"): false,
		} {
			if got := e.Names(second.Lock.Images[0].Ref, d); got != want {
				t.Errorf("Names %s: got %v", d, got)
			}
		}
		img := e.record(t)
		if img.Labels[labelLock] != second.Digest.String() || img.Labels[labelPrevious] != first.Digest.String() {
			t.Errorf("labels of the record: %v", img.Labels)
		}
		e.node.Collect(t) // the record keeps the blob
		e.restart(t)
		noError(t, e.Load(e.ctx))
	}
	noError(t, e.Write(e.ctx, State{Dropped: "sha256:d"}))
	if img := e.record(t); img.Labels[labelLock] != "" || img.Labels[labelPrevious] != "" {
		t.Errorf("labels after the removal: %v", img.Labels)
	}
	if got := e.pins.Retained(); len(got) != 0 {
		t.Errorf("retained after the removal: %v", got)
	}
	e.restart(t)
	noError(t, e.Load(e.ctx))
	if got := e.Get(); got.Current != nil || got.Dropped != "sha256:d" {
		t.Errorf("after the removal: %+v", got)
	}
}

// TestKeep checks that digests stay retained until the next Keep or Write, and that those calls update what is retained.
func TestKeep(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	current := lockOf(t, map[string]string{app: "one"})
	noError(t, e.Write(e.ctx, State{Current: current}))
	for _, s := range []struct {
		roots, want, synced []string
	}{
		{roots: []string{"one", "two"}, want: []string{"one", "two"}, synced: []string{"one", "two"}},
		{roots: []string{"three"}, want: []string{"one", "three"}, synced: []string{"one", "three", "two"}},
		{want: []string{"one"}, synced: []string{"three"}},
	} {
		e.synced = nil
		noError(t, e.Keep(e.ctx, digests(s.roots)))
		if got := e.pins.Retained(); !slices.Equal(got, digests(s.want)) {
			t.Errorf("Keep %v: retained %v", s.roots, got)
		}
		if slices.Sort(e.synced); !slices.Equal(e.synced, digests(s.synced)) {
			t.Errorf("Keep %v: updated %v", s.roots, e.synced)
		}
	}
	noError(t, e.Keep(e.ctx, digests([]string{"two", "never"})))
	noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "two"}), Previous: current}))
	if got := e.pins.Retained(); !slices.Equal(got, digests([]string{"one", "two"})) {
		t.Errorf("after the switch: retained %v", got)
	}
	for _, d := range digests([]string{"one", "two", "never"}) {
		if !e.pins.Retains(d) && d != root("never").Digest || !slices.Contains(e.synced, d) {
			t.Errorf("%s is not updated after the switch: %v", d, e.synced)
		}
	}
}

// TestLoadDuringKeep checks that a reload does not wait until an apply has retained its images.
func TestLoadDuringKeep(t *testing.T) {
	e := newEnv(t)
	c := e.config(e.pins)
	var loaded error
	c.Retain = func(ctx context.Context, _ ...digest.Digest) error {
		done := make(chan error, 1)
		go func() { done <- e.Load(ctx) }()
		select {
		case loaded = <-done:
			return nil
		case <-time.After(time.Minute):
			return errors.New("Load waits for Keep")
		}
	}
	e.Store = New(c)
	noError(t, e.Load(e.ctx))
	noError(t, e.Keep(e.ctx, digests([]string{"new"})))
	noError(t, loaded)
}

func digests(texts []string) (all []digest.Digest) {
	for _, text := range texts {
		all = append(all, root(text).Digest)
	}
	slices.Sort(all)
	return all
}

// TestLoadDuringApply checks that a new list of the images, after a reload of the configuration or a lost event stream, changes
// neither the lock nor what an apply retains.
func TestLoadDuringApply(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "one"})}))
	noError(t, e.Keep(e.ctx, digests([]string{"two"})))
	noError(t, e.node.Images.Delete(e.inPins(), pin.LockRecord))
	noError(t, e.pins.Load(e.ctx))
	noError(t, e.Load(e.ctx))
	if got := e.pins.Retained(); !slices.Equal(got, digests([]string{"one", "two"})) || e.locked(app) != root("one").Digest {
		t.Errorf("retained %v, locked %s", got, e.locked(app))
	}
}

// TestUnreadable checks that what is retained stays if the record cannot be read, whatever an apply keeps, until the lock is
// removed.
func TestUnreadable(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, e *env){
		"newer version": func(t *testing.T, e *env) { e.point(t, []byte(`{"version":2}`)) },
		"damaged":       func(t *testing.T, e *env) { e.point(t, []byte(`{`)) },
		"too large": func(t *testing.T, e *env) {
			img := e.record(t)
			img.Target.Size = maxBlob + 1
			_, err := e.node.Images.Update(e.inPins(), img, "target")
			noError(t, err)
		},
		"no blob": func(t *testing.T, e *env) { noError(t, e.node.Content.Delete(e.inPins(), e.record(t).Target.Digest)) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			noError(t, e.Load(e.ctx))
			noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "one"})}))
			damage(t, e)
			e.restart(t)
			e.retained = digests([]string{"one", "old"})
			noError(t, e.Load(e.ctx))
			if e.Err() == nil || e.Get().Current != nil || e.locked(app) != "" {
				t.Fatalf("state %+v, error %v", e.Get(), e.Err())
			}
			noError(t, e.Keep(e.ctx, digests([]string{"new"})))
			noError(t, e.Keep(e.ctx, nil))
			noError(t, e.Repair(e.ctx))
			if got := e.pins.Retained(); !slices.Equal(got, e.retained) {
				t.Errorf("retained %v", got)
			}
			e.synced = nil
			noError(t, e.Write(e.ctx, State{}))
			if slices.Sort(e.synced); e.Err() != nil || len(e.pins.Retained()) != 0 || !slices.Equal(e.synced, e.retained) {
				t.Errorf("after the removal: %v, retained %v, updated %v", e.Err(), e.pins.Retained(), e.synced)
			}
		})
	}
}

// point makes the record target a blob.
func (e *env) point(t *testing.T, data []byte) {
	desc := ocispec.Descriptor{MediaType: MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	noError(t, content.WriteBlob(e.inPins(), e.node.Content, "test", bytes.NewReader(data), desc))
	img := e.record(t)
	img.Target = desc
	_, err := e.node.Images.Update(e.inPins(), img, "target")
	noError(t, err)
}

// TestLoadWithoutContainerd checks that a lock is not taken for unreadable while containerd does not answer.
func TestLoadWithoutContainerd(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "one"})}))
	e.restart(t)
	broken := e.Store.config
	gone := fmt.Errorf("the connection is gone: %w", errdefs.ErrUnavailable)
	e.Store.config.Content = ctdtest.Content{Store: e.node.Content, Before: ctdtest.Fail("ReaderAt", gone)}
	if err := e.Load(e.ctx); !errdefs.IsUnavailable(err) || e.Err() != nil {
		t.Fatalf("got %v, %v", err, e.Err())
	}
	e.Store.config = broken
	if noError(t, e.Load(e.ctx)); e.locked(app) != root("one").Digest {
		t.Errorf("locked %s", e.locked(app))
	}
}

func TestRepair(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	noError(t, e.Repair(e.ctx)) // there is nothing
	if _, err := e.node.Images.Get(e.inPins(), pin.LockRecord); !errdefs.IsNotFound(err) {
		t.Fatalf("record of a node without a lock: %v", err)
	}
	a := lockOf(t, map[string]string{app: "one"})
	noError(t, e.Write(e.ctx, State{Current: a}))
	want := e.record(t)
	noError(t, e.Repair(e.ctx))
	if got := e.record(t); !got.UpdatedAt.Equal(want.UpdatedAt) {
		t.Error("an intact record was written")
	}
	for name, damage := range map[string]func(){
		"record removed": func() { noError(t, e.node.Images.Delete(e.inPins(), pin.LockRecord)) },
		"blob removed":   func() { noError(t, e.node.Content.Delete(e.inPins(), want.Target.Digest)) },
		"other target":   func() { e.point(t, []byte("{}")) },
		"both removed": func() {
			noError(t, e.node.Images.Delete(e.inPins(), pin.LockRecord))
			e.node.Collect(t)
		},
	} {
		damage()
		noError(t, e.Repair(e.ctx))
		e.restart(t)
		if noError(t, e.Load(e.ctx)); e.Digest() != a.Digest || e.record(t).Target.Digest != want.Target.Digest {
			t.Errorf("%s: got lock %s, %+v", name, e.Digest(), e.record(t))
		}
	}
}

var errKilled = errors.New("killed")

// TestKillBeforeSwitch checks that a kill between the blob and the record leaves the old lock, and nothing of the new one.
func TestKillBeforeSwitch(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	old := lockOf(t, map[string]string{app: "one"})
	noError(t, e.Write(e.ctx, State{Current: old}))
	e.Store.config.Images = ctdtest.Images{Store: e.node.Images, Before: ctdtest.Fail("Update", errKilled)}
	next := State{Current: lockOf(t, map[string]string{app: "two"}), Previous: old}
	if err := e.Write(e.ctx, next); !errors.Is(err, errKilled) || e.Digest() != old.Digest || e.locked(app) != root("one").Digest {
		t.Fatalf("got %v, lock %s", err, e.Digest())
	}
	e.restart(t)
	if noError(t, e.Load(e.ctx)); e.Digest() != old.Digest {
		t.Errorf("after the restart: lock %s", e.Digest())
	}
	e.node.Collect(t)
	data, err := next.marshal()
	noError(t, err)
	if _, err := e.node.Content.Info(e.inPins(), digest.FromBytes(data)); !errdefs.IsNotFound(err) {
		t.Errorf("blob of the lock that was not applied: %v", err)
	}
	noError(t, e.Write(e.ctx, next))
}

// interrupted is a content store that is killed before the last bytes of a blob.
type interrupted struct{ content.Store }

// Writer implements content.Ingester.
func (s interrupted) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Store.Writer(ctx, opts...)
	return interruptedWriter{w}, err
}

type interruptedWriter struct{ content.Writer }

// Write implements io.Writer.
func (w interruptedWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p[:len(p)-10])
	return n, errors.Join(err, errKilled)
}

// TestInterruptedBlob checks that the beginning of a blob, which a kill has left, does not prevent later writes.
func TestInterruptedBlob(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	killed := State{Current: lockOf(t, map[string]string{app: "one"})}
	e.Store.config.Content = interrupted{e.node.Content}
	if err := e.Write(e.ctx, killed); !errors.Is(err, errKilled) {
		t.Fatalf("got %v", err)
	}
	if left, err := e.node.Content.ListStatuses(e.inPins()); err != nil || len(left) != 1 || left[0].Offset == 0 {
		t.Fatalf("left %+v, %v", left, err)
	}
	e.Store.config.Content = e.node.Content
	for _, next := range []State{{Current: lockOf(t, map[string]string{app: "two"})}, killed} {
		if noError(t, e.Write(e.ctx, next)); e.record(t).Labels[labelLock] != next.Current.Digest.String() {
			t.Errorf("record %+v", e.record(t))
		}
	}
}

// TestWriteRefuses checks that nothing is written that the next start could not read, or for a caller that has gone.
func TestWriteRefuses(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	without := lockOf(t, map[string]string{app: "one"})
	clear(without.Roots)
	if err := e.Write(e.ctx, State{Current: without}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("without descriptors: got %v", err)
	}
	gone, cancel := context.WithCancel(e.ctx)
	cancel()
	if err := e.Write(gone, State{Current: lockOf(t, map[string]string{app: "one"})}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: got %v", err)
	}
	if e.Digest() != "" || len(e.pins.List()) != 0 {
		t.Errorf("lock %s, pins %v", e.Digest(), e.pins.List())
	}
}

// TestSwitchedWithoutRetain checks that a lock is the node's from the switch on, also if what it retains cannot be updated.
func TestSwitchedWithoutRetain(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	e.retain = errors.New("no room")
	a := lockOf(t, map[string]string{app: "one"})
	if noError(t, e.Write(e.ctx, State{Current: a})); e.Digest() != a.Digest || e.locked(app) != root("one").Digest {
		t.Errorf("lock %s, pin %s", e.Digest(), e.locked(app))
	}
}

// TestConcurrentUse runs all calls at once, for the race detector. In the end, pins and state agree.
func TestConcurrentUse(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	locks := []*Applied{lockOf(t, map[string]string{app: "one"}), lockOf(t, map[string]string{app: "two"})}
	id := pin.ID{Scope: policy.LockScope, Ref: app}
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for _, err := range []error{
				e.Write(e.ctx, State{Current: locks[n%2], Previous: locks[(n+1)%2]}), e.Keep(e.ctx, digests([]string{"three"})), e.Load(e.ctx),
				e.Repair(e.ctx), e.pins.Load(e.ctx), e.pins.Touch(e.ctx, id), e.pins.RecordDrift(e.ctx, id, root("other").Digest),
			} {
				if err != nil {
					t.Error(err)
				}
			}
			e.Names(locks[0].Lock.Images[0].Ref, root("one").Digest)
		})
	}
	all.Wait()
	if now := e.Get(); e.locked(app) != now.Current.Lock.Images[0].Ref.Digest() || e.record(t).Labels[labelLock] != now.Current.Digest.String() {
		t.Errorf("state %s, pin %s, record %v", now.Current.Digest, e.locked(app), e.record(t).Labels)
	}
}

// TestSwitchedDespiteRetain checks that a Write whose lock is switched succeeds, and that Repair completes it.
func TestSwitchedDespiteRetain(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	e.retain = errors.New("containerd restarts")
	noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "one"})}))
	e.retain, e.synced = nil, nil
	noError(t, e.Repair(e.ctx))
	if !slices.Contains(e.synced, root("one").Digest) {
		t.Errorf("the repair has updated %v", e.synced)
	}
	e.synced = nil
	noError(t, e.Repair(e.ctx))
	if len(e.synced) > 0 {
		t.Errorf("a repair with nothing to do has updated %v", e.synced)
	}
}

// TestRemovedLockLeavesNothing removes a lock, and the lease of a write that was killed.
func TestRemovedLockLeavesNothing(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	noError(t, e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "one"})}))
	l, err := e.node.Leases.Create(e.inPins(), leases.WithRandomID(), leases.WithLabel(imagepin.LeaseLabel, string(lease.Pull)))
	noError(t, err)
	e.restart(t)
	noError(t, e.Load(e.ctx))
	noError(t, e.Write(e.ctx, State{}))
	if left, err := e.node.Leases.List(e.inPins()); err != nil || len(left) > 0 {
		t.Errorf("leases %v, %v, want none (%s was left)", left, err, l.ID)
	}
	if _, err := e.node.Images.Get(e.inPins(), pin.LockRecord); !errdefs.IsNotFound(err) {
		t.Errorf("the record: got %v, want none", err)
	}
	if got := e.pins.List(); len(got) > 0 {
		t.Errorf("pins %v, want none", got)
	}
}

// TestUnsyncedLock checks that the record of the lock does not target a blob whose name may not be on the disk.
func TestUnsyncedLock(t *testing.T) {
	e := newEnv(t)
	noError(t, e.Load(e.ctx))
	first := lockOf(t, map[string]string{app: "one"})
	noError(t, e.Write(e.ctx, State{Current: first}))
	e.sync = errors.New("input/output error")
	if err := e.Write(e.ctx, State{Current: lockOf(t, map[string]string{app: "two"}), Previous: first}); !errors.Is(err, e.sync) {
		t.Errorf("got %v, want %v", err, e.sync)
	}
	for range 2 {
		if got := e.locked(app); got != root("one").Digest || e.record(t).Labels[labelLock] != first.Digest.String() {
			t.Errorf("locked digest %s, record of %s, want the first lock", got, e.record(t).Labels[labelLock])
		}
		e.restart(t)
		noError(t, e.Load(e.ctx))
	}
}
