package decide

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// wantError fails the test unless err has a reason and a class.
func wantError(t *testing.T, err error, reason imagepin.Reason, class error) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason || !errors.Is(err, class) {
		t.Errorf("got %v, want %s (%v)", err, reason, class)
	}
}

func wantEqual[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// make pins the tag to a version.
func (e *env) make(t *testing.T, scope policy.Scope, version string, by pin.By, retain bool) pin.Pin {
	t.Helper()
	held, err := e.pins.Move(e.ctx, e.id(scope), roots[version], by, retain)
	noError(t, err)
	return held
}

// TestPreview changes nothing. A scope replaces that of the rule.
func TestPreview(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	v, rule, err := e.Preview(e.ctx, Request{Ref: e.ref}, "")
	noError(t, err)
	wantEqual(t, "digest", version(v.Root.Digest), "old")
	wantEqual(t, "reason", v.Why, "resolved by the registry; a pull would pin it")
	wantEqual(t, "rule", rule.Consistency, policy.Node)
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "")

	e.make(t, workload, "new", pin.ByOperator, false)
	used, _ := e.pins.Get(e.id(workload))
	v, _, err = e.Preview(e.ctx, Request{Ref: e.ref}, workload)
	noError(t, err)
	wantEqual(t, "digest in a scope", version(v.Root.Digest), "new")
	held, _ := e.pins.Get(e.id(workload))
	if held.UsedAt != used.UsedAt || held.Drift != nil {
		t.Errorf("got pin %+v, want no use and no drift", held)
	}
}

// TestPreviewForAPod applies the labels and the annotations of a pod.
func TestPreviewForAPod(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload, AllowPodOverride: true})
	e.make(t, workload, "new", pin.ByUse, false)
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}, Annotations: map[string]string{}}
	for annotation, want := range map[string]struct {
		digest, ignored string
		consistency     policy.Consistency
	}{
		"registry.example/other:*=off": {"new", "", policy.Workload},
		e.ref.String() + "=off":        {"old", "", policy.Off},
		"never":                        {"new", policy.ConsistencyAnnotation, policy.Workload},
	} {
		pod.Annotations[policy.ConsistencyAnnotation] = annotation
		v, rule, err := e.Preview(e.ctx, Request{Ref: e.ref, Pod: pod}, "")
		noError(t, err)
		wantEqual(t, annotation, version(v.Root.Digest), want.digest)
		wantEqual(t, annotation, rule.Consistency, want.consistency)
		wantEqual(t, annotation, strings.Join(e.IgnoredAnnotations(e.ref.String(), pod), ","), want.ignored)
	}
}

// workload is the scope of a revision.
var workload = policy.WorkloadScope("shop", "revision", "1")

// TestSetPin pins a tag, and moves the pin.
func TestSetPin(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	set := SetPin{Ref: e.ref, Scope: workload, Digest: roots["old"].Digest}
	held, previous, err := e.SetPin(e.ctx, set)
	noError(t, err)
	wantEqual(t, "first previous digest", previous, "")
	wantEqual(t, "first digest", held.Root.Digest, roots["old"].Digest)
	wantEqual(t, "media type", held.Root.MediaType, roots["old"].MediaType)
	wantEqual(t, "by", held.By, pin.ByOperator)
	wantEqual(t, "retain", held.Retain, false)
	wantEqual(t, "requests", e.registry.requests.Load(), 1)

	set.Digest = roots["new"].Digest
	held, previous, err = e.SetPin(e.ctx, set)
	noError(t, err)
	wantEqual(t, "previous digest", previous, roots["old"].Digest)
	wantEqual(t, "digest", held.Root.Digest, roots["new"].Digest)
	wantEqual(t, "pin in the scope", e.pinned(workload), "new")
	wantEqual(t, "pin of the node", e.pinned(policy.NodeScope), "")
}

// TestSetPinToADigestOnTheNode sends a request only if the credential has no proof for the digest.
func TestSetPinToADigestOnTheNode(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	alice := resolve.Credential{Username: "alice", Password: "secret"}
	e.put(t, "old", ownTarget, imagepin.SourcePull, &alice, 1)
	set := SetPin{Ref: e.ref, Scope: policy.NodeScope, Digest: roots["old"].Digest, Credential: alice}
	_, _, err := e.SetPin(e.ctx, set)
	noError(t, err)
	wantEqual(t, "requests with a proof", e.registry.requests.Load(), 0)

	set.Credential = resolve.Credential{Username: "bob", Password: "secret"}
	e.registry.status.Store(http.StatusForbidden)
	if _, _, err = e.SetPin(e.ctx, set); !errdefs.IsPermissionDenied(err) && !errdefs.IsUnauthorized(err) {
		t.Errorf("without a proof: got %v, want access denied", err)
	}
}

// TestSetPinFails leaves the pin unchanged.
func TestSetPinFails(t *testing.T) {
	digested := func(e *env, t *testing.T) reference.Named { return e.byDigest(t, "new") }
	tag := func(e *env, _ *testing.T) reference.Named { return e.ref }
	for name, test := range map[string]struct {
		ref    func(e *env, t *testing.T) reference.Named
		digest digest.Digest
		status int32
		full   bool
		reason imagepin.Reason
		class  error
	}{
		"reference with a digest": {digested, roots["new"].Digest, 0, false, imagepin.InvalidRequest, errdefs.ErrInvalidArgument},
		"invalid digest":          {tag, "sha256:none", 0, false, imagepin.InvalidRequest, errdefs.ErrInvalidArgument},
		"no such digest":          {tag, roots["new"].Digest, 404, false, imagepin.CannotPullImageManifest, errdefs.ErrNotFound},
		"no answer":               {tag, roots["new"].Digest, 503, false, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable},
		"no space":                {tag, roots["new"].Digest, 0, true, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			e.make(t, policy.NodeScope, "old", pin.ByUse, false)
			e.registry.status.Store(test.status)
			e.retained.full = test.full
			_, previous, err := e.SetPin(e.ctx, SetPin{Ref: test.ref(e, t), Scope: policy.NodeScope, Digest: test.digest, Retain: &yes})
			wantError(t, err, test.reason, test.class)
			wantEqual(t, "previous digest", previous, "")
			wantEqual(t, "pin", e.pinned(policy.NodeScope), "old")
		})
	}
}

// yes and no are values of SetPin.Retain.
var yes, no = true, false

// TestSetPinRetains retains the content if the operator or the rule says so, or if the pin did before and the operator
// says nothing. It reserves space for the images of the
// repository, with the space that the pin frees, and records the proof of the operator.
func TestSetPinRetains(t *testing.T) {
	for name, test := range map[string]struct {
		operator           *bool
		rule, before, want bool
	}{
		"operator":            {&yes, false, false, true},
		"rule":                {&no, true, true, true},
		"no longer":           {&no, false, true, false},
		"as before, retained": {nil, false, true, true},
		"as before":           {nil, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off, Retain: test.rule})
			e.make(t, policy.NodeScope, "old", pin.ByUse, test.before)
			e.put(t, "new", ownTarget, imagepin.SourcePull, nil, 1)
			elsewhere := e.images.entries[0]
			elsewhere.Ref = "registry.example/other:1"
			invalid := elsewhere
			invalid.Ref = "invalid reference"
			e.images.entries = append(e.images.entries, elsewhere, invalid)
			held, _, err := e.SetPin(e.ctx, SetPin{Ref: e.ref, Scope: policy.NodeScope, Digest: roots["new"].Digest, Retain: test.operator})
			noError(t, err)
			wantEqual(t, "retain", held.Retain, test.want)
			wantEqual(t, "proof", e.pins.HasProof(e.resolver.Proof(e.ref, resolve.Credential{}, roots["new"].Digest)), test.want)
			wantEqual(t, "reservations that are not released", e.retained.reserved, 0)
			if !test.want {
				wantEqual(t, "reservations", len(e.retained.entries), 0)
				return
			}
			wantEqual(t, "reserved images", len(e.retained.entries), 2)
			wantEqual(t, "the old digest is freed", e.retained.freed(roots["old"].Digest), true)
			wantEqual(t, "the new digest is freed", e.retained.freed(roots["new"].Digest), false)
		})
	}
}

// TestFreed frees the digest of a pin that moves, unless another pin retains it.
func TestFreed(t *testing.T) {
	for name, test := range map[string]struct {
		other bool // another pin has the digest
		keeps bool // and retains it
		moves bool // and moves as well
		to    string
		want  bool
	}{
		"one pin":              {to: "new", want: true},
		"to the same digest":   {to: "old", want: false},
		"another pin":          {other: true, to: "new", want: true},
		"another that retains": {other: true, keeps: true, to: "new", want: false},
		"both move":            {other: true, keeps: true, moves: true, to: "new", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			moving := []pin.Pin{e.make(t, policy.NodeScope, "old", pin.ByUse, true)}
			if test.other {
				other := e.make(t, workload, "old", pin.ByUse, test.keeps)
				if test.moves {
					moving = append(moving, other)
				}
			}
			freed := e.freedBy(moving, roots[test.to].Digest)
			wantEqual(t, "old", freed(roots["old"].Digest), test.want)
			wantEqual(t, "new", freed(roots["new"].Digest), false)
		})
	}
}

// TestRefreshOf selects the pins and images that a refresh moves.
func TestRefreshOf(t *testing.T) {
	for name, test := range map[string]struct {
		scope  policy.Scope
		image  bool
		pins   []policy.Scope // pins on the node
		want   []policy.Scope // pins that move
		reason imagepin.Reason
	}{
		"nothing":              {reason: imagepin.UnknownImage},
		"image":                {image: true},
		"no pin in the scope":  {scope: workload, image: true, pins: []policy.Scope{policy.NodeScope}, reason: imagepin.UnknownPin},
		"pin without image":    {pins: []policy.Scope{workload}, want: []policy.Scope{workload}},
		"all pins":             {image: true, pins: []policy.Scope{policy.NodeScope, workload}, want: []policy.Scope{policy.NodeScope, workload}},
		"the pin of the scope": {scope: workload, pins: []policy.Scope{policy.NodeScope, workload}, want: []policy.Scope{workload}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			if test.image {
				e.put(t, "old", ownTarget, imagepin.SourcePull, nil, 1)
			}
			for _, scope := range test.pins {
				e.make(t, scope, "old", pin.ByUse, false)
			}
			e.registry.tag.Store("new")
			r, err := e.Refresh(e.ctx, e.ref, test.scope, resolve.Credential{})
			if test.reason != "" {
				wantError(t, err, test.reason, errdefs.ErrNotFound)
				var known *imagepin.Error
				if errors.As(err, &known); known.Message == "" || known.Hint == "" || known.Ref != e.ref.String() {
					t.Errorf("got error %+v, want a message, a hint and the reference", known)
				}
				wantEqual(t, "requests", e.registry.requests.Load(), 0)
				return
			}
			noError(t, err)
			var scopes []policy.Scope
			for _, held := range r.Verdict.Moves {
				scopes = append(scopes, held.Scope)
			}
			slices.Sort(scopes)
			if !slices.Equal(scopes, test.want) {
				t.Errorf("got pins in %q, want %q", scopes, test.want)
			}
			wantEqual(t, "images", len(r.Images) == 1, test.image)
			wantEqual(t, "tag", r.Tag.String(), e.ref.String())
			wantEqual(t, "reference by digest", r.Verdict.Ref.String(), e.byDigest(t, "new").String())
			wantEqual(t, "digest", version(r.Verdict.Root.Digest), "new")
			wantEqual(t, "reason", r.Verdict.Why, "resolved by the registry")
		})
	}
}

// TestRefreshFails fails for a digest, and with the error of the registry.
func TestRefreshFails(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	_, err := e.Refresh(e.ctx, e.byDigest(t, "old"), "", resolve.Credential{})
	wantError(t, err, imagepin.InvalidRequest, errdefs.ErrInvalidArgument)
	e.registry.status.Store(http.StatusNotFound)
	_, err = e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrNotFound)
}

// TestMovePins moves all pins of a refresh. A pin of an operator stays one.
func TestMovePins(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.make(t, policy.NodeScope, "old", pin.ByOperator, false)
	e.make(t, workload, "old", pin.ByUse, true)
	e.registry.tag.Store("new")
	r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	noError(t, err)
	e.put(t, "new", ownTarget, imagepin.SourcePull, nil, 1)

	e.retained.full = true
	_, moved, err := e.MovePins(e.ctx, r, e.images.entries)
	wantError(t, err, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted)
	wantEqual(t, "moved without space", len(moved), 0)
	wantEqual(t, "pin without space", e.pinned(workload), "old")

	e.retained.full = false
	v, moved, err := e.MovePins(e.ctx, r, e.images.entries)
	noError(t, err)
	wantEqual(t, "reserved images", len(e.retained.entries), len(e.images.entries))
	wantEqual(t, "the old digest is freed", e.retained.freed(roots["old"].Digest), true)
	wantEqual(t, "reservations that are not released", e.retained.reserved, 0)
	wantEqual(t, "reference", v.Ref.String(), e.ref.String())
	wantEqual(t, "moved", len(moved), 2)
	wantEqual(t, "pin of the verdict", v.Pin.ID, moved[1].ID)
	for scope, want := range map[policy.Scope]pin.Pin{
		policy.NodeScope: {By: pin.ByOperator}, workload: {By: pin.ByRefresh, Retain: true},
	} {
		held, _ := e.pins.Get(e.id(scope))
		wantEqual(t, "digest", version(held.Root.Digest), "new")
		wantEqual(t, "by", held.By, want.By)
		wantEqual(t, "retain", held.Retain, want.Retain)
	}
}

// TestMovePinsOfOthers does not move a pin that an operator has moved since the refresh has read it. That pin does not
// decide the verdict.
func TestMovePinsOfOthers(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	noError(t, err)
	r.Verdict.Root = root("newer")
	e.make(t, policy.NodeScope, "new", pin.ByOperator, false)
	v, moved, err := e.MovePins(e.ctx, r, nil)
	noError(t, err)
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "new")
	wantEqual(t, "moved", len(moved), 1)
	wantEqual(t, "pin after the move", version(moved[0].Root.Digest), "new")
	wantEqual(t, "the verdict has no pin", v.Pin == nil, true)
	wantEqual(t, "the tag moves", e.movesTag(v), false)
}

// TestReserveForRefresh reserves space for the images of a refresh before they are made ready, if one of its pins
// retains content.
func TestReserveForRefresh(t *testing.T) {
	for name, retain := range map[string]bool{"retain": true, "no retain": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			e.make(t, policy.NodeScope, "old", pin.ByUse, false)
			e.make(t, workload, "old", pin.ByUse, retain)
			e.registry.tag.Store("new")
			r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
			noError(t, err)
			e.put(t, "new", otherTarget, imagepin.SourcePull, nil, 1)
			next := imagepin.Entry{Key: imagepin.Key{Ref: r.Verdict.Ref.String(), Target: ownTarget}, Root: r.Verdict.Root}

			release, err := e.reserveFor(e.ctx, r.Verdict, next, nil)
			noError(t, err)
			wantEqual(t, "reserved", e.retained.reserved == 1, retain)
			if retain {
				wantEqual(t, "images", len(e.retained.entries), len(e.images.entries)+1)
				wantEqual(t, "the old digest is freed", e.retained.freed(roots["old"].Digest), true)
			}
			release()
			wantEqual(t, "reservations that are not released", e.retained.reserved, 0)

			e.retained.full = true
			_, err = e.reserveFor(e.ctx, r.Verdict, next, nil)
			wantEqual(t, "fails without space", err != nil, retain)

			e.retained.full = false
			v, _, err := e.MovePins(e.ctx, r, e.images.entries)
			noError(t, err)
			wantEqual(t, "pins to move after the move", len(v.Moves), 0)
		})
	}
}

// TestMovePinsRetainedMeanwhile reserves space for a pin that an operator lets retain its content after the refresh has
// read it, and none for a pin that was removed.
func TestMovePinsRetainedMeanwhile(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	e.make(t, workload, "old", pin.ByUse, true)
	e.registry.tag.Store("new")
	r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	noError(t, err)
	_, err = e.pins.Remove(e.ctx, e.id(workload))
	noError(t, err)
	e.retained.full = true
	e.make(t, policy.NodeScope, "old", pin.ByOperator, true)
	_, moved, err := e.MovePins(e.ctx, r, nil)
	wantError(t, err, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted)
	wantEqual(t, "moved without space", len(moved), 0)
	wantEqual(t, "pin without space", e.pinned(policy.NodeScope), "old")

	e.make(t, policy.NodeScope, "old", pin.ByOperator, false)
	_, _, err = e.MovePins(e.ctx, r, nil)
	noError(t, err)
	wantEqual(t, "pin", e.pinned(policy.NodeScope), "new")
	wantEqual(t, "pin that was removed", e.pinned(workload), "")
}

// changingPins calls before with each pin that a refresh is about to move.
type changingPins struct {
	*pin.Store
	before func(pin.ID)
}

func (c changingPins) Refresh(ctx context.Context, read pin.Pin, root ocispec.Descriptor, reserved bool) (pin.Pin, error) {
	c.before(read.ID)
	return c.Store.Refresh(ctx, read, root, reserved)
}

// TestMovePinsRetainedDuringTheMove lets an operator set retain on a pin after space was found unnecessary for it, and
// directly before it moves. The pin moves with a reservation, or not at all. Pins that have moved before stay moved.
func TestMovePinsRetainedDuringTheMove(t *testing.T) {
	for name, test := range map[string]struct {
		full   bool
		retain policy.Scope // of the pin that the operator changes
		moved  int
	}{
		"first pin":                {false, policy.NodeScope, 2},
		"second pin":               {false, workload, 2},
		"first pin without space":  {true, policy.NodeScope, 0},
		"second pin without space": {true, workload, 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
			e.make(t, policy.NodeScope, "old", pin.ByUse, false)
			e.make(t, workload, "old", pin.ByUse, false)
			e.registry.tag.Store("new")
			r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
			noError(t, err)
			e.put(t, "new", ownTarget, imagepin.SourcePull, nil, 1)
			e.retained.full = test.full
			reserved := make(map[pin.ID]int) // when a pin was last about to move
			e.Decider.pins = changingPins{e.pins, func(id pin.ID) {
				reserved[id] = e.retained.reserved
				if now, _ := e.pins.Get(id); id.Scope == test.retain && !now.Retain {
					e.make(t, id.Scope, "old", pin.ByOperator, true)
				}
			}}
			_, moved, err := e.MovePins(e.ctx, r, e.images.entries)
			wantEqual(t, "moved", len(moved), test.moved)
			wantEqual(t, "reservations that are not released", e.retained.reserved, 0)
			held, _ := e.pins.Get(e.id(test.retain))
			wantEqual(t, "retain", held.Retain, true)
			if test.full {
				wantError(t, err, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted)
				wantEqual(t, "pin without space", e.pinned(test.retain), "old")
				return
			}
			noError(t, err)
			wantEqual(t, "pin", e.pinned(test.retain), "new")
			if reserved[held.ID] != 1 {
				t.Fatal("the pin has moved without a reservation")
			}
			wantEqual(t, "reserved images", len(e.retained.entries), len(e.images.entries))
			wantEqual(t, "the old digest is freed", e.retained.freed(roots["old"].Digest), true)
		})
	}
}

// TestMovePinsWithoutRetain reserves no space.
func TestMovePinsWithoutRetain(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	e.registry.tag.Store("new")
	e.retained.full = true
	r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	noError(t, err)
	_, moved, err := e.MovePins(e.ctx, r, nil)
	noError(t, err)
	wantEqual(t, "moved", len(moved), 1)
}
