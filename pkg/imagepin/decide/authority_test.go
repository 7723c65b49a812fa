package decide

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// TestConfirm confirms a use until its pin moves, or the lock changes against which it was checked.
func TestConfirm(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	used, err := e.Use(e.ctx, Use{Name: e.ref.String(), Image: e.byDigest(t, "old"), Ref: e.ref, InRepository: true, Root: roots["old"]})
	noError(t, err)
	used.Verified = true
	for _, test := range []struct {
		before  func()
		current bool
	}{
		{func() {}, true},
		{func() { wantEqual(t, "pinned", e.pinned(policy.NodeScope), "old") }, true},
		{func() {
			_, err := e.pins.Move(e.ctx, e.id(policy.NodeScope), roots["new"], pin.ByOperator, false)
			noError(t, err)
		}, false},
	} {
		test.before()
		current, err := e.Confirm(e.ctx, used)
		noError(t, err)
		wantEqual(t, "current", current, test.current)
	}
	e.Decider.lock = namesOf{"any": true}
	current, err := e.Confirm(e.ctx, Used{Root: roots["old"]})
	noError(t, err)
	wantEqual(t, "current after a lock was applied", current, false)
}

// waitingPins are pins that something changes while a call waits for the mutex of a pin.
type waitingPins struct {
	Pins
	other func()
}

func (p *waitingPins) Touch(ctx context.Context, id pin.ID) error {
	if other := p.other; other != nil {
		p.other = nil
		other()
	}
	return p.Pins.Touch(ctx, id)
}

// TestConfirmWaits confirms a use by what applies after it has waited for its pin.
func TestConfirmWaits(t *testing.T) {
	for name, other := range map[string]func(t *testing.T, e *env){
		"pin set": func(t *testing.T, e *env) {
			_, err := e.pins.Move(e.ctx, e.id(policy.NodeScope), roots["new"], pin.ByOperator, false)
			noError(t, err)
		},
		"pin rm": func(t *testing.T, e *env) {
			_, err := e.pins.Remove(e.ctx, e.id(policy.NodeScope))
			noError(t, err)
		},
		"apply": func(_ *testing.T, e *env) { e.lock("new") },
	} {
		for by, consistency := range map[pin.By]policy.Consistency{pin.ByOperator: policy.Off, pin.ByUse: policy.Node} {
			t.Run(name+", "+string(by), func(t *testing.T) {
				e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: consistency})
				held := e.make(t, policy.NodeScope, "old", by, false)
				e.Decider.pins = &waitingPins{e.pins, func() { other(t, e) }}
				current, err := e.Confirm(e.ctx, Used{Ref: e.ref, Root: roots["old"], Pin: &held, Scope: policy.NodeScope})
				noError(t, err)
				wantEqual(t, "current", current, false)
			})
		}
	}
}

// TestMovedBeforeDecide decides by the pin and the lock as they are, whatever they were when the authorities were asked.
func TestMovedBeforeDecide(t *testing.T) {
	type change struct {
		consistency   policy.Consistency
		before, after func(t *testing.T, e *env)
		status        int32
		tag           string
		want          string // the version, or "" for an error
	}
	pinned := func(version string) func(t *testing.T, e *env) {
		return func(t *testing.T, e *env) { e.make(t, policy.NodeScope, version, pin.ByOperator, false) }
	}
	removed := func(t *testing.T, e *env) {
		_, err := e.pins.Remove(e.ctx, e.id(policy.NodeScope))
		noError(t, err)
	}
	locked := func(version string) func(t *testing.T, e *env) { return func(_ *testing.T, e *env) { e.lock(version) } }
	for name, c := range map[string]change{
		"to a digest without a proof":         {policy.Node, pinned("old"), pinned("new"), 401, "old", ""},
		"removed":                             {policy.Node, pinned("old"), removed, 0, "old", "other"},
		"lock removed":                        {policy.Off, locked("old"), locked(""), 0, "old", "other"},
		"made, and the tag is gone":           {policy.Node, func(*testing.T, *env) {}, pinned("new"), 0, "gone", "new"},
		"removed, and the tag is gone":        {policy.Node, pinned("new"), removed, 0, "gone", ""},
		"the lock is removed, no tag":         {policy.Off, locked("new"), locked(""), 0, "gone", ""},
		"applied":                             {policy.Off, func(*testing.T, *env) {}, locked("old"), 0, "old", "old"},
		"unchanged, and the registry is away": {policy.Node, pinned("old"), func(*testing.T, *env) {}, 503, "old", "old"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.PreferCached, Consistency: c.consistency})
			roots["other"] = root("other")
			defer delete(roots, "other")
			if c.tag != "gone" {
				e.put(t, "old", otherTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
				e.put(t, "other", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 2)
				e.images.entries = append(e.images.entries, imagepin.Entry{
					Key: imagepin.Key{Ref: e.byDigest(t, "new").String(), Target: ownTarget}, Root: roots["new"], Source: imagepin.SourcePull,
				})
			}
			c.before(t, e)
			q := e.asked(t, policy.Pod{})
			c.after(t, e)
			e.registry.tag.Store(c.tag)
			e.registry.status.Store(c.status)
			v, err := e.Decide(e.ctx, q)
			if got := version(v.Root.Digest); (err == nil) != (c.want != "") || c.want != "" && got != c.want {
				t.Errorf("got %s, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestUseOfALockedTag checks the tag of a use against the lock, and without one the digest.
func TestUseOfALockedTag(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off, Locked: policy.LockedStrict})
	e.lock("old")
	e.Decider.lock = namesOf{}
	use := Use{Name: e.ref.String(), Image: e.byDigest(t, "old"), Ref: e.ref, InRepository: true, Root: roots["old"]}
	_, err := e.Use(e.ctx, use)
	noError(t, err)
	use.Ref = nil
	_, err = e.Use(e.ctx, use)
	wantError(t, err, imagepin.NotInLock, errdefs.ErrPermissionDenied)
}

// TestOperatorsPinIsNotClaimed runs the digest that an operator has set for this node, and leaves the cluster alone.
func TestOperatorsPinIsNotClaimed(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	for _, scope := range []policy.Scope{policy.NodeScope, policy.WorkloadScope("shop", "revision", "1")} {
		held := e.make(t, scope, "old", pin.ByOperator, false)
		now, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-a"), Root: roots["old"], Verified: true})
		noError(t, err)
		wantEqual(t, "the pin that decides", now.ID, held.ID)
		after, _ := e.pins.Get(held.ID)
		wantEqual(t, "whose pin it is", after.By, pin.ByOperator)
		wantEqual(t, "pins of the cluster", len(c.pins), 0)
		_, err = e.pins.Remove(e.ctx, held.ID)
		noError(t, err)
	}
}

// TestUnreadableCopy fails for a copy of an ImagePin that a newer release has written, whether the cluster has the ImagePin or not. A
// status shows the digest of the cluster.
func TestUnreadableCopy(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	e.unreadable(t, firstScope)
	for _, pinned := range []string{"", "old"} {
		if pinned != "" {
			c.pins["uid-1 "+e.ref.String()] = roots[pinned].Digest
		}
		_, err := e.Decide(e.ctx, e.asked(t, webPod("web-1-a")))
		wantError(t, err, imagepin.PinOfNewerRelease, errdefs.ErrNotImplemented)
		_, err = e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-a"), Root: roots["old"], Verified: true})
		wantError(t, err, imagepin.PinOfNewerRelease, errdefs.ErrNotImplemented)
		root, ok, err := e.looked(e.ctx, e.ref.String(), webPod("web-1-a"))
		if err != nil || ok != (pinned != "") || ok && version(root.Digest()) != pinned {
			t.Errorf("status: got %v, %t, %v, want %q", root, ok, err, pinned)
		}
	}
	wantEqual(t, "requests to the registry", e.registry.requests.Load(), 0)
}

// TestCopyWithoutRoom fails a call whose copy of an ImagePin must retain content for which there is no room.
func TestCopyWithoutRoom(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload, Retain: true})
	e.join(newFakeCluster(), false)
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
	e.retained.full = true
	_, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a")})
	wantError(t, err, imagepin.RetainLimitReached, errdefs.ErrResourceExhausted)
	wantEqual(t, "pins", len(e.pins.List()), 0)
}

// TestClaimOfAProvisionalPinIsRefused returns the error of the API server, and the pin stays as it is.
func TestClaimOfAProvisionalPinIsRefused(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.refuses = errAway
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = nil
	c.beside = func() { c.refuses = errdefs.ErrPermissionDenied }
	if _, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a")}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("got %v, want that of the API server", err)
	}
	wantEqual(t, "provisional pins", len(e.pins.Provisional()), 1)
}

// TestAnotherNodeWasFirst runs the digest of the cluster in the call that claims a provisional pin and finds that another node was first.
func TestAnotherNodeWasFirst(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.refuses = errAway
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = nil
	e.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	c.beside = func() { c.pins["uid-1 "+e.ref.String()] = roots["new"].Digest }
	q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-b")})
	noError(t, err)
	if q.Pin == nil || version(q.Pin.Root.Digest) != "new" || q.Pin.Provisional != nil {
		t.Errorf("got %+v, want the copy of the cluster's pin", q.Pin)
	}
}

// TestDescribe finds the descriptor of a digest that only a pin has.
func TestDescribe(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	if _, ok := e.Describe(e.ref, roots["old"].Digest); ok {
		t.Error("described a digest that nothing has")
	}
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	if desc, ok := e.Describe(e.ref, roots["old"].Digest); !ok || desc.Size != roots["old"].Size {
		t.Errorf("got %+v, %t", desc, ok)
	}
}
