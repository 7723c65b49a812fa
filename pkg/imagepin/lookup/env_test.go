package lookup

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const (
	app   = "registry.example/team/app:1"
	other = "registry.example/team/other:1"
	far   = "far.example/team/app:1"
)

func root(text string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: int64(len(text))}
}

// at returns a reference by digest in the repository of a tag.
func at(ref, text string) string {
	return strings.TrimSuffix(ref, ":1") + "@" + root(text).Digest.String()
}

// env has the pins of a node, a registry that counts, and proofs.
type env struct {
	*Looker
	node *ctdtest.Node
	pins *pin.Store
	ctx  context.Context

	mu      sync.Mutex
	tags    map[string]string // text of the digest, by reference
	fails   map[string]error  // by reference, or by registry
	asked   []string
	times   []time.Time
	proofs  map[string]bool // by reference by digest
	events  []string
	during  func()
	unused  map[pin.ID]bool
	looked  map[Outcome]int
	nodeKey string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	node := ctdtest.New(t, "first")
	e := &env{node: node, ctx: node.Context(t), tags: map[string]string{}, fails: map[string]error{}, proofs: map[string]bool{}, unused: map[pin.ID]bool{}, looked: map[Outcome]int{}}
	e.pins = pin.New(pin.Config{
		Images: node.Images, Namespaces: ctdtest.Namespaces{DB: node.DB},
		Notify: func(_ context.Context, ev pin.Event, p pin.Pin, _ digest.Digest) { e.note(string(ev) + " " + p.Ref) },
	})
	if err := e.pins.Load(e.ctx); err != nil {
		t.Fatal(err)
	}
	e.restart()
	return e
}

// synctest runs a test with a clock of its own. containerd's metadata is outside of it, because its goroutines do not end.
func (e *env) synctest(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e.ctx = e.node.Context(t)
		test(t)
	})
}

// restart forgets what lookups have found.
func (e *env) restart() {
	e.Looker = New(Config{
		Pins: e.pins, Registry: e, Proofs: e, InUse: e.inUse,
		LookedUp: func(o Outcome) { e.mu.Lock(); defer e.mu.Unlock(); e.looked[o]++ },
		Gone:     func(_ context.Context, p pin.Pin) { e.note("gone " + p.Ref) },
	})
}

func (e *env) note(event string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.events = append(e.events, event)
}

func (e *env) inUse(context.Context) (map[pin.ID]bool, error) {
	used := make(map[pin.ID]bool)
	for _, p := range e.pins.List() {
		used[p.ID] = !e.unused[p.ID]
	}
	return used, nil
}

// LookUp implements [Registry]. The registry has the digests of the tags, and what was set for a reference by digest.
func (e *env) LookUp(_ context.Context, ref reference.Named) (digest.Digest, error) {
	e.mu.Lock()
	e.asked, e.times = append(e.asked, ref.String()), append(e.times, time.Now())
	during := e.during
	e.during = nil
	e.mu.Unlock()
	if during != nil {
		during()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, of := range []string{ref.String(), reference.Domain(ref)} {
		if err := e.fails[of]; err != nil {
			return "", err
		}
	}
	if text, ok := e.tags[ref.String()]; ok {
		return root(text).Digest, nil
	}
	return "", &imagepin.Error{Reason: imagepin.CannotPullImageManifest, Ref: ref.String(), Class: errdefs.ErrNotFound, Message: "404"}
}

// Of implements [Proofs].
func (e *env) Of(ref reference.Named, _ resolve.Credential, root digest.Digest) string {
	return e.nodeKey + ref.Name() + "@" + root.String()
}

// Accepted implements [Proofs].
func (e *env) Accepted(ref reference.Named, c resolve.Credential, root digest.Digest) (string, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	proof := e.Of(ref, c, root)
	return proof, e.proofs[proof]
}

// pin pins a reference in a scope, which is node by default.
func (e *env) pin(t *testing.T, ref, text string, scope ...policy.Scope) pin.Pin {
	t.Helper()
	p, err := e.pins.Move(e.ctx, pin.ID{Scope: append(scope, policy.NodeScope)[0], Ref: ref}, root(text), pin.ByUse, false)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// took returns the requests since the last call.
func (e *env) took() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	asked := e.asked
	e.asked, e.times = nil, nil
	return asked
}

func (e *env) takeEvents() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	events := e.events
	e.events = nil
	return events
}

func (e *env) check(t *testing.T) {
	t.Helper()
	if err := e.Check(e.ctx, e.pins.List()); err != nil {
		t.Fatal(err)
	}
}

// outcome returns the outcome for a pin, and its drift.
func (e *env) outcome(t *testing.T, p pin.Pin) string {
	t.Helper()
	now, ok := e.pins.Get(p.ID)
	if !ok {
		t.Fatalf("no pin %s", p.ID)
	}
	r, ok := e.Looker.Of(now)
	text := string(r.Outcome)
	if !ok {
		text = "never"
	}
	if now.Drift != nil {
		text += ", moved"
	}
	return text
}

func wantEqual[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var (
	denied = &imagepin.Error{Reason: imagepin.PullAccessDenied, Class: errdefs.ErrPermissionDenied, Message: "registry.example answered 403 Forbidden"}
	away   = &imagepin.Error{Reason: imagepin.CannotPullImageManifest, Class: errdefs.ErrUnavailable, Message: "connection refused"}
)

func busy(after time.Duration) error {
	return &resolve.Busy{Err: away, RetryAfter: after}
}

func counts(m map[Outcome]int) string { return fmt.Sprint(maps.Clone(m)) }
