package decide

import (
	"github.com/opencontainers/go-digest"
	"strings"

	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// node is the policy of a reference that is pinned for the node.
var node = policy.Decision{Rule: policy.Rule{Behavior: policy.Default, Consistency: policy.Node}, Scope: policy.NodeScope}

// wantMoved fails the test unless err is a MovedError with the verdict for a pinned version.
func wantMoved(t *testing.T, err error, to string) {
	t.Helper()
	var moved *MovedError
	if !errors.As(err, &moved) {
		t.Fatalf("got %v, want a MovedError", err)
	}
	v := moved.Verdict
	if version(v.Root.Digest) != to || v.Pin == nil || v.Pin.Root.Digest != v.Root.Digest || v.FirstUse != nil {
		t.Errorf("got verdict %+v, want that of the pin to %s", v, to)
	}
	if want := v.Ref.String() + " was pinned to " + v.Root.Digest.String() + " during the pull"; err.Error() != want {
		t.Errorf("got error %q, want %q", err, want)
	}
}

// TestKey distinguishes requests by the pinned digest only if the policy pins the reference, and by what a new revision runs.
func TestKey(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	q := e.asked(t, policy.Pod{})
	key := func(scope policy.Scope, root digest.Digest) string {
		return strings.Join([]string{e.ref.String(), ownTarget.String(), string(q.Policy.Behavior), string(scope), root.String(), "false", ""}, "\x00")
	}
	wantEqual(t, "without a pin", q.Key(), key(policy.NodeScope, ""))
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	q = e.asked(t, policy.Pod{})
	wantEqual(t, "with a pin", q.Key(), key(policy.NodeScope, roots["old"].Digest))
	running := q
	running.New, running.Running = true, roots["new"].Digest
	fresh := q
	fresh.New = true
	wantEqual(t, "three keys", q.Key() != fresh.Key() && fresh.Key() != running.Key() && q.Key() != running.Key(), true)
}

// TestReserve reserves space for the image of a verdict whose pin retains it.
func TestReserve(t *testing.T) {
	image := imagepin.Entry{Root: roots["old"]}
	for name, test := range map[string]struct {
		verdict Verdict
		want    int
	}{
		"no pin":                       {Verdict{}, 0},
		"first use":                    {Verdict{FirstUse: &pin.FirstUse{}}, 0},
		"first use that retains":       {Verdict{FirstUse: &pin.FirstUse{Retain: true}}, 1},
		"pin":                          {Verdict{Pin: &pin.Pin{}}, 0},
		"pin that retains":             {Verdict{Pin: &pin.Pin{Retain: true}}, 1},
		"pin that retains, first use":  {Verdict{Pin: &pin.Pin{Retain: true}, FirstUse: &pin.FirstUse{}}, 1},
		"pin, first use that retains":  {Verdict{Pin: &pin.Pin{}, FirstUse: &pin.FirstUse{Retain: true}}, 1},
		"neither the pin nor this use": {Verdict{Pin: &pin.Pin{}, FirstUse: &pin.FirstUse{}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			release, err := e.reserveFor(e.ctx, test.verdict, image, nil)
			noError(t, err)
			wantEqual(t, "reserved", e.retained.reserved, test.want)
			wantEqual(t, "images", len(e.retained.entries), test.want)
			release()
			wantEqual(t, "after the release", e.retained.reserved, 0)
			e.retained.full = true
			if _, err = e.reserveFor(e.ctx, test.verdict, image, nil); (err != nil) != (test.want > 0) {
				t.Errorf("without space: got %v", err)
			}
		})
	}
}

// TestPinFirstUse makes a pin at the first use. A later use of another digest gets the verdict of the pin.
func TestPinFirstUse(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	q := Request{Ref: e.ref, Policy: node}
	q.Policy.Namespace, q.Policy.Retain = "shop", true
	first, err := e.Decide(e.ctx, q)
	noError(t, err)
	e.registry.tag.Store("new")
	second, err := e.Decide(e.ctx, q)
	noError(t, err)
	if first.FirstUse == nil || first.Pin != nil {
		t.Fatalf("got verdict %+v, want a first use", first)
	}

	v, err := e.pinFirstUse(e.ctx, first)
	noError(t, err)
	held, _ := e.pins.Get(e.id(policy.NodeScope))
	if v.Pin == nil || v.Pin.ID != held.ID || v.FirstUse != nil {
		t.Errorf("got verdict %+v, want that of the pin", v)
	}
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "old")
	wantEqual(t, "by", held.By, pin.ByUse)
	wantEqual(t, "namespace", held.For, "shop")
	wantEqual(t, "retain", held.Retain, true)

	v, err = e.pinFirstUse(e.ctx, second)
	wantMoved(t, err, "old")
	wantEqual(t, "verdict of a use that was not first", version(v.Root.Digest), "new")
	again, err := e.pinFirstUse(e.ctx, first)
	noError(t, err)
	wantEqual(t, "the same digest again", again.Pin.ID, held.ID)
}

// TestPinFirstUseFails returns the error of the pin store.
func TestPinFirstUseFails(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	e.pins = pin.New(pin.Config{Images: e.node.Images, Namespaces: ctdtest.Namespaces{DB: e.node.DB}, MaxPerNamespace: func() int { return 1 }})
	noError(t, e.pins.Load(e.ctx))
	e.Decider.pins = e.pins
	_, err := e.pins.MakeForNamespace(e.ctx, "shop", pin.ID{Scope: policy.NodeScope, Ref: "registry.example/other:1"}, roots["old"], pin.ByUse, false)
	noError(t, err)
	q := Request{Ref: e.ref, Policy: node}
	q.Policy.Namespace = "shop"
	v, err := e.Decide(e.ctx, q)
	noError(t, err)
	v, err = e.pinFirstUse(e.ctx, v)
	wantError(t, err, imagepin.PinLimitReached, errdefs.ErrResourceExhausted)
	wantEqual(t, "digest", version(v.Root.Digest), "old")
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "")

	_, err = e.pinUse(e.ctx, Used{Ref: e.ref, pod: policy.Pod{Namespace: "shop"}, Root: roots["old"], Verified: true})
	wantError(t, err, imagepin.PinLimitReached, errdefs.ErrResourceExhausted)
}

// current returns the error of Current.
func (e *env) current(v Verdict) error {
	_, err := e.Current(v)
	return err
}

// TestCurrent fails if the pin of a verdict has moved, and only then.
func TestCurrent(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	held := e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	v := Verdict{Ref: e.ref, Root: roots["old"], Pin: &held}
	noError(t, e.current(v))
	noError(t, e.current(Verdict{Ref: e.ref, Root: roots["new"]}))

	e.make(t, policy.NodeScope, "new", pin.ByRefresh, false)
	wantMoved(t, e.current(v), "new")
	v.Ref = e.byDigest(t, "old")
	noError(t, e.current(v)) // a refresh pulls by digest, and moves the pin after that

	v.Ref = e.ref
	_, err := e.pins.Remove(e.ctx, held.ID)
	noError(t, err)
	noError(t, e.current(v))
}

// TestMovesTag reports which verdicts decide what a tag resolves to on the node.
func TestMovesTag(t *testing.T) {
	inWorkload := &pin.Pin{ID: pin.ID{Scope: workload}}
	inNode := &pin.Pin{ID: pin.ID{Scope: policy.NodeScope}}
	oldRoot, newRoot := roots["old"], roots["new"]
	for name, test := range map[string]struct {
		node    string // the version that the node is pinned to
		verdict Verdict
		want    bool
	}{
		"no pin":                               {"", Verdict{Root: oldRoot}, true},
		"the pin of the node":                  {"old", Verdict{Root: oldRoot}, true},
		"another digest than the node's":       {"old", Verdict{Root: newRoot}, false},
		"a pin of the node that was removed":   {"", Verdict{Root: oldRoot, Pin: inNode}, true},
		"a workload, no answer":                {"", Verdict{Root: oldRoot, Pin: inWorkload}, false},
		"a workload, the registry agrees":      {"", Verdict{Root: oldRoot, Pin: inWorkload, Registry: &oldRoot}, true},
		"a workload, the registry does not":    {"", Verdict{Root: oldRoot, Pin: inWorkload, Registry: &newRoot}, false},
		"a workload with the node's digest":    {"old", Verdict{Root: oldRoot, Pin: inWorkload}, true},
		"a workload with another digest":       {"new", Verdict{Root: oldRoot, Pin: inWorkload, Registry: &oldRoot}, false},
		"no pin of the workload, another here": {"new", Verdict{Root: oldRoot, Registry: &oldRoot}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			if test.node != "" {
				e.make(t, policy.NodeScope, test.node, pin.ByUse, false)
			}
			test.verdict.Ref = e.ref
			wantEqual(t, "moves the tag", e.movesTag(test.verdict), test.want)
		})
	}
}

// TestPinUse pins what a container without a pull runs.
func TestPinUse(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node, Retain: true})
	pod := policy.Pod{Namespace: "shop"}
	e.put(t, "old", ownTarget, imagepin.SourcePull, nil, 1)

	e.retained.full = true
	_, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: pod, Root: roots["old"], Verified: true})
	wantError(t, err, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted)
	wantEqual(t, "pin without space", e.pinned(policy.NodeScope), "")

	e.retained.full = false
	held, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: pod, Root: roots["old"], Verified: true})
	noError(t, err)
	wantEqual(t, "digest", held.Root.Digest, roots["old"].Digest)
	wantEqual(t, "by", held.By, pin.ByUse)
	wantEqual(t, "namespace", held.For, "shop")
	wantEqual(t, "retain", held.Retain, true)
	wantEqual(t, "reserved images", len(e.retained.entries), 2)
	wantEqual(t, "reservations that are not released", e.retained.reserved, 0)

	// The first use wins. It has reserved the space, so that no use after it does.
	e.retained.full = true
	before := held.UsedAt
	for !time.Now().After(before) {
		runtime.Gosched() // the clock may be coarse
	}
	held, err = e.pinUse(e.ctx, Used{Ref: e.ref, pod: pod, Root: roots["new"], Verified: true})
	noError(t, err)
	wantEqual(t, "digest of the second use", held.Root.Digest, roots["old"].Digest)
	now, _ := e.pins.Get(held.ID)
	if !now.UsedAt.After(before) {
		t.Errorf("got last use %s, want after %s", now.UsedAt, before)
	}
}

// TestPinUseUnverified makes no pin, and uses a pin that there is.
func TestPinUseUnverified(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node, Retain: true})
	e.retained.full = true // no space is reserved for a pin that is not made
	use := Used{Ref: e.ref, pod: policy.Pod{Namespace: "shop"}, Root: roots["new"]}
	held, err := e.pinUse(e.ctx, use)
	noError(t, err)
	if held != nil || len(e.pins.List()) != 0 {
		t.Errorf("got pin %+v, want none", held)
	}
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	held, err = e.pinUse(e.ctx, use)
	noError(t, err)
	wantEqual(t, "digest", version(held.Root.Digest), "old")
}

// TestPinUseWithoutPolicy pins nothing.
func TestPinUseWithoutPolicy(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	held, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: policy.Pod{}, Root: roots["old"], Verified: true})
	noError(t, err)
	if held != nil || len(e.pins.List()) != 0 {
		t.Errorf("got pin %+v, want none", held)
	}
}

// TestPinForPod returns the pin of the pod's scope, and where the policy pins the reference.
func TestPinForPod(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, policy.Rule{Match: "**/team/*", Consistency: policy.Workload})
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}}
	q, err := e.described(e.ctx, e.ref, pod)
	noError(t, err)
	if q.Pin != nil || q.Policy.Scope != workload {
		t.Errorf("without a pin: got %v in scope %q, want none in %q", q.Pin, q.Policy.Scope, workload)
	}
	e.make(t, workload, "old", pin.ByUse, false)
	q, err = e.described(e.ctx, e.ref, pod)
	noError(t, err)
	if q.Pin == nil || q.Pin.Scope != workload || q.Policy.Scope != workload {
		t.Errorf("with a pin: got %v in scope %q, want one in %q", q.Pin, q.Policy.Scope, workload)
	}
	other, err := reference.ParseNormalizedNamed("registry.example/other:1")
	noError(t, err)
	q, err = e.described(e.ctx, other, pod)
	noError(t, err)
	if q.Pin != nil || q.Policy.Scope != "" {
		t.Errorf("without a policy: got %v in scope %q, want none", q.Pin, q.Policy.Scope)
	}
}

// TestReserveEvicts checks that pins that nothing uses give way if there is no space: those of the caller's namespace and of a
// namespace that has more than its share, and no others.
func TestReserveEvicts(t *testing.T) {
	for name, c := range map[string]struct {
		over, gives string   // the namespace with more than its share, and that of the pin that is enough
		want        []string // the namespaces whose pins are left
	}{
		"the namespace's own":            {"", "shop", []string{"team"}},
		"nobody has more than its share": {"", "team", []string{"shop", "team"}},
		"another namespace has more":     {"team", "team", nil},
		"evictions are not enough":       {"team", "", []string{"shop", "team"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			e.pins = pin.New(pin.Config{
				Images: e.node.Images, Namespaces: ctdtest.Namespaces{DB: e.node.DB},
				InUse: func(context.Context) (map[pin.ID]bool, error) { return nil, nil },
			})
			noError(t, e.pins.Load(e.ctx))
			e.Decider.pins = e.pins
			for _, namespace := range []string{"shop", "team"} {
				id := pin.ID{Scope: policy.WorkloadScope(namespace, "revision", "1"), Ref: e.ref.String()}
				_, err := e.pins.MakeForNamespace(e.ctx, namespace, id, root(namespace), pin.ByUse, true)
				noError(t, err)
			}
			e.retained.full, e.retained.over = true, c.over
			if c.gives != "" {
				e.retained.roomWithout = root(c.gives).Digest
			}
			v := Verdict{FirstUse: &pin.FirstUse{Retain: true}, Namespace: "shop"}
			_, err := e.reserveFor(e.ctx, v, imagepin.Entry{Root: roots["old"]}, nil)
			var full *imagepin.Error
			if !errors.As(err, &full) || full.Reason != imagepin.RetainLimitReached {
				t.Errorf("got %v", err)
			}
			wantEqual(t, "namespace", e.retained.namespace, "shop")
			var left []string
			for _, p := range e.pins.List() {
				left = append(left, p.Scope.Namespace())
			}
			if !slices.Equal(left, c.want) {
				t.Errorf("pins of %q are left, want %q", left, c.want)
			}
		})
	}
}
