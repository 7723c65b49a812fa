package decide

import (
	"errors"
	"strings"
	"testing"
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

// lock locks the tag to a version. Without one it removes the lock.
func (e *env) lock(version string) {
	var pins []pin.Pin
	if version != "" {
		pins = append(pins, pin.Pin{
			ID: e.id(policy.LockScope), Root: roots[version], By: pin.ByLock, Retain: true, MadeAt: time.Unix(0, 0), UsedAt: time.Unix(0, 0),
		})
	}
	e.pins.SetLock(pins, nil)
}

// namesOf has the names of the images of a lock.
type namesOf map[string]bool

// Names implements Lock.
func (n namesOf) Names(repository reference.Named, d digest.Digest) bool {
	return n[repository.Name()+"@"+d.String()]
}

// Copies implements Lock.
func (namesOf) Copies(reference.Named, digest.Digest) []reference.Named { return nil }

// Digest implements Lock.
func (n namesOf) Digest() digest.Digest {
	if len(n) == 0 {
		return ""
	}
	return "sha256:lock"
}

// TestLockPrecedes checks that the pin of the lock decides before all other pins, without a new pin.
func TestLockPrecedes(t *testing.T) {
	workload := policy.WorkloadScope("shop", "revision", "1")
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}}
	for name, consistency := range map[string]policy.Consistency{"off": policy.Off, "node": policy.Node, "workload": policy.Workload} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: consistency})
			e.make(t, policy.NodeScope, "new", pin.ByOperator, false)
			e.make(t, workload, "new", pin.ByOperator, false)
			e.registry.tag.Store("new")
			e.lock("old")
			wantEqual(t, "scope", e.ScopeOf(e.ref.String(), pod), policy.LockScope)
			v, err := e.Decide(e.ctx, e.asked(t, pod))
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), "old")
			wantEqual(t, "reason", v.Why, "locked since 1970-01-01T00:00:00Z")
			if v.FirstUse != nil || v.Pin == nil || v.Pin.By != pin.ByLock {
				t.Errorf("verdict %+v", v)
			}
			q, err := e.described(e.ctx, e.ref, pod)
			noError(t, err)
			wantEqual(t, "scope for the pod", q.Policy.Scope, policy.LockScope)
			wantEqual(t, "digest for the pod", version(q.Pin.Root.Digest), "old")
			if used, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: pod, Root: roots["new"], Verified: true}); err != nil || version(used.Root.Digest) != "old" {
				t.Errorf("use by a container: %+v, %v", used, err)
			}
			if p, _ := e.pins.OfLock(e.ref.String()); p.Drift == nil || p.Drift.Digest != roots["new"].Digest {
				t.Errorf("drift of the lock's pin: %+v", p.Drift)
			}
			e.lock("")
			if e.ScopeOf(e.ref.String(), pod) == policy.LockScope {
				t.Error("the lock was removed and still decides")
			}
		})
	}
}

// TestLockAppliedDuringRequest checks a lock that is applied, or removed, while the registry is asked.
func TestLockAppliedDuringRequest(t *testing.T) {
	for name, c := range map[string]struct {
		before, during string
		consistency    policy.Consistency
		want           string
		firstUse       bool
	}{
		"applied, not pinned": {during: "old", consistency: policy.Off, want: "old"},
		"applied, first use":  {during: "old", consistency: policy.Node, want: "old"},
		"another one":         {before: "new", during: "old", consistency: policy.Node, want: "old"},
		"removed":             {before: "old", consistency: policy.Node, want: "new"},
		"removed, not pinned": {before: "old", consistency: policy.Off, want: "new"},
		"there is none":       {consistency: policy.Node, want: "new", firstUse: true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Always, Consistency: c.consistency})
			e.registry.tag.Store("new")
			e.lock(c.before)
			q := e.asked(t, policy.Pod{})
			e.registry.during = func() { e.lock(c.during) }
			v, err := e.Decide(e.ctx, q)
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), c.want)
			wantEqual(t, "first use", v.FirstUse != nil, c.firstUse)
			wantEqual(t, "pinned by the lock", v.Pin != nil && v.Pin.By == pin.ByLock, c.during != "")
			noError(t, e.current(v))
		})
	}
}

// TestCurrentAgainstLock checks verdicts from before a lock was applied, changed or removed.
func TestCurrentAgainstLock(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	node := e.make(t, policy.NodeScope, "new", pin.ByUse, false)
	first := Verdict{Ref: e.ref, Root: roots["new"], FirstUse: &pin.FirstUse{ID: e.id(policy.NodeScope)}}
	pinned := Verdict{Ref: e.ref, Root: roots["new"], Pin: &node}
	byDigest := Verdict{Ref: e.byDigest(t, "new"), Root: roots["new"]}
	for _, v := range []Verdict{first, pinned, byDigest} {
		noError(t, e.current(v))
		wantEqual(t, "moves the tag without a lock", e.movesTag(v), true)
	}
	e.lock("old")
	for _, v := range []Verdict{first, pinned} {
		wantMoved(t, e.current(v), "old")
		wantEqual(t, "moves the tag", e.movesTag(v), false)
	}
	noError(t, e.current(byDigest))
	locked, _ := e.pins.OfLock(e.ref.String())
	now := Verdict{Ref: e.ref, Root: roots["old"], Pin: &locked}
	noError(t, e.current(now))
	wantEqual(t, "the lock moves the tag", e.movesTag(now), true)
	e.lock("new")
	wantMoved(t, e.current(now), "new")
	noError(t, e.current(first))
	wantEqual(t, "the digest of the lock moves the tag", e.movesTag(first), true)
	e.lock("")
	noError(t, e.current(now))
}

// TestLockedWithoutTag uses the locked digest although the registry does not have the tag any more.
func TestLockedWithoutTag(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Always, Consistency: policy.Off})
	e.registry.tag.Store("deleted")
	e.lock("old")
	q := e.asked(t, policy.Pod{})
	v, err := e.Decide(e.ctx, q)
	noError(t, err)
	wantEqual(t, "digest", version(v.Root.Digest), "old")
	e.registry.status.Store(404)
	var known *imagepin.Error
	if _, err = e.Decide(e.ctx, q); !errors.As(err, &known) || known.Reason != imagepin.PinnedDigestGone {
		t.Errorf("without the digest: got %v", err)
	}
}

func TestLockedIsNotMoved(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	e.lock("old")
	_, _, setErr := e.SetPin(e.ctx, SetPin{Ref: e.ref, Scope: policy.NodeScope, Digest: roots["new"].Digest, Force: true})
	_, refreshErr := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
	e.lock("")
	_, scopeErr := e.Refresh(e.ctx, e.ref, policy.LockScope, resolve.Credential{})
	for what, err := range map[string]error{"set": setErr, "refresh": refreshErr, "refresh of the scope": scopeErr} {
		var known *imagepin.Error
		if !errors.As(err, &known) || known.Reason != imagepin.LockedReference || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	wantEqual(t, "pin of the node", e.pinned(policy.NodeScope), "old")
}

// TestLockedInCluster checks that the lock precedes a pin of the cluster, and that the cluster is not asked.
func TestLockedInCluster(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, true)
	pod := webPod("web-1-a")
	e.wantPull(t, pod, "old")
	asked, owners := c.asked, c.owners
	e.lock("new")
	e.wantPull(t, pod, "new")
	wantEqual(t, "requests to the cluster", [2]int{c.asked, c.owners}, [2]int{asked, owners})
	e.lock("")
	e.wantPull(t, pod, "old")
	wantEqual(t, "requests to the cluster after the removal", c.asked > asked, true)
}

func TestCheckInLock(t *testing.T) {
	const repository, other = "registry.example/app", "registry.example/other"
	index, amd64, stranger := digest.FromString("index"), digest.FromString("amd64"), digest.FromString("stranger")
	rules := []policy.Rule{{Match: "registry.example/*", Locked: policy.LockedStrict}, {Match: "warn.example/**", Locked: policy.LockedWarn}}
	for name, c := range map[string]struct {
		name   string
		root   digest.Digest
		refuse bool
		counts int
	}{
		"locked tag":                       {name: repository + ":1"},
		"locked tag, its digest":           {name: repository + ":1", root: index},
		"locked tag, another digest":       {name: repository + ":1", root: stranger, refuse: true, counts: 1},
		"locked tag, digest of a platform": {name: repository + ":1", root: amd64, refuse: true, counts: 1},
		"another tag":                      {name: repository + ":2", refuse: true, counts: 1},
		"another tag with a locked digest": {name: repository + ":2", root: index},
		"digest of the index":              {name: repository + "@" + index.String()},
		"digest of a platform":             {name: repository + "@" + amd64.String()},
		"another digest":                   {name: repository + "@" + stranger.String(), refuse: true, counts: 1},
		"a digest that runs another":       {name: repository + "@" + index.String(), root: stranger, refuse: true, counts: 1},
		"digest in another repository":     {name: other + "@" + index.String(), refuse: true, counts: 1},
		"rule that warns":                  {name: "warn.example/app:1", counts: 1},
		"rule that does neither":           {name: "free.example/app:1"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, rules...)
			ref, err := imagepin.ParseReference(c.name)
			noError(t, err)
			counts := 0
			rulebook := e.Decider.policy
			e.pins.SetLock([]pin.Pin{{ID: pin.ID{Scope: policy.LockScope, Ref: repository + ":1"}, Root: ocispec.Descriptor{Digest: index}}}, nil)
			d := New(Config{
				Policy: rulebook, Pins: e.pins, Lock: namesOf{repository + "@" + index.String(): true, repository + "@" + amd64.String(): true},
				NotInLock: func(policy.Locked) { counts++ },
			})
			err = d.checkInLock(e.ctx, ref, c.root)
			var known *imagepin.Error
			if c.refuse != (errors.As(err, &known) && known.Reason == imagepin.NotInLock && errdefs.IsPermissionDenied(err)) || !c.refuse && err != nil {
				t.Errorf("got %v", err)
			}
			if c.refuse && (!strings.Contains(err.Error(), "registry.example/*") || !strings.Contains(err.Error(), "sha256:lock")) {
				t.Errorf("the error names neither the rule nor the lock: %v", err)
			}
			wantEqual(t, "counts", counts, c.counts)
		})
	}
}

// TestCheckUnknownInLock checks names of images that only containerd knows. An ID names no repository, so that any strict rule
// applies to it.
func TestCheckUnknownInLock(t *testing.T) {
	strict := policy.Rule{Match: "registry.example/*", Locked: policy.LockedStrict}
	warn := policy.Rule{Match: "registry.example/*", Locked: policy.LockedWarn}
	id := digest.FromString("image")
	for name, c := range map[string]struct {
		rule   policy.Rule
		name   string
		refuse bool
		counts int
	}{
		"reference":                        {strict, "registry.example/app:1", true, 1},
		"reference of another rule":        {strict, "free.example/app:1", false, 0},
		"ID":                               {strict, id.String(), true, 1},
		"ID without its algorithm":         {strict, id.Encoded(), true, 1},
		"short ID":                         {strict, id.Encoded()[:7], true, 1},
		"no reference":                     {strict, "A B", true, 1},
		"ID, and a rule that only warns":   {warn, id.String(), false, 0},
		"reference, and a rule that warns": {warn, "registry.example/app:1", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			rulebook, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, []policy.Rule{c.rule}, nil)
			noError(t, err)
			counts := 0
			d := New(Config{Policy: ctdtest.Always(rulebook), Pins: pin.New(pin.Config{}), NotInLock: func(policy.Locked) { counts++ }})
			if err = d.checkUnknownInLock(t.Context(), c.name); c.refuse != errdefs.IsPermissionDenied(err) || !c.refuse && err != nil {
				t.Errorf("got %v", err)
			}
			if c.refuse && !strings.Contains(err.Error(), "no lock is applied") {
				t.Errorf("got %v", err)
			}
			wantEqual(t, "counts", counts, c.counts)
		})
	}
}

// TestIsImageID checks what is not taken for a reference.
func TestIsImageID(t *testing.T) {
	id := digest.FromString("image")
	for name, want := range map[string]bool{
		id.String(): true, id.Encoded(): true, id.Encoded()[:1]: true, "sha256:" + id.Encoded()[:1]: true,
		"": false, "sha256:": false, id.String() + "0": false, id.Encoded() + "0": false, "sha256:sha256:1": false, "sha512:1": false, "app": false, "1\n": false,
	} {
		if got := isImageID(name); got != want {
			t.Errorf("%q: got %t, want %t", name, got, want)
		}
	}
}
