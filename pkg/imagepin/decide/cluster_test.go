package decide

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// errAway is the error of an API server that does not answer.
var errAway = &imagepin.Error{Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable}

// errForeign is the error for an ImagePin of another owner with the name of the pin.
var errForeign = &imagepin.Error{Reason: imagepin.ForeignPin, Class: errdefs.ErrFailedPrecondition}

// fakeCluster has the pins of a cluster with one workload, web, in two revisions. Pods of the first have names that begin
// with web-1.
type fakeCluster struct {
	mu      sync.Mutex
	pins    map[string]digest.Digest // by owner UID and image
	refuses error                    // the error of every request
	foreign bool                     // the ImagePin has another owner
	asked   int
	owners  int    // requests for owners
	refused int    // requests for a pod that is not said to be gone, which were refused
	beside  func() // runs before a claim is decided
	// claimant runs once, during the request for the owner of a pod for which a pin was made.
	claimant func()
	during   func() // runs during each lookup
	// pods are the owners of some pods, by UID. A pod without an owner is gone.
	pods      map[string]*policy.Owner
	ownerless bool // no pod has an owner
	// policies are the pull policies of all pods.
	policies []string
	// stale reports that the cache of the API server has no pins.
	stale bool
}

func newFakeCluster() *fakeCluster { return &fakeCluster{pins: make(map[string]digest.Digest)} }

// member is the view of one node. It remembers what it has read.
type member struct {
	*fakeCluster
	known map[string]digest.Digest
}

func webOwner(pod policy.Pod) *policy.Owner {
	name, _, ok := strings.Cut(strings.TrimPrefix(pod.Name, "web-"), "-")
	if !ok || !strings.HasPrefix(pod.Name, "web-") {
		return nil
	}
	return &policy.Owner{Kind: "ReplicaSet", Name: "web-" + name, UID: "uid-" + name}
}

func (m *member) Owner(_ context.Context, pod policy.Pod) (*policy.Owner, error) {
	if asked := m.claimant; asked != nil && pod.MayBeGone {
		m.claimant = nil
		asked()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.owners++
	if m.refuses != nil {
		if errdefs.IsPermissionDenied(m.refuses) && !pod.MayBeGone {
			m.refused++
		}
		return nil, m.refuses
	}
	if m.ownerless {
		return nil, nil
	}
	if owner, ok := m.pods[pod.UID]; ok && owner == nil {
		return nil, errdefs.ErrPermissionDenied
	} else if ok {
		return owner, nil
	}
	return webOwner(pod), nil
}

func (m *member) KnownOwner(policy.Pod) (*policy.Owner, bool) { return nil, false }

func (m *member) Lookup(_ context.Context, pod policy.Pod, image string, copied bool) (digest.Digest, error) {
	if m.during != nil {
		m.during()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.refuses != nil {
		return "", m.refuses
	}
	if m.foreign {
		return "", errForeign
	}
	key := pod.Owner.UID + " " + image
	d, ok := m.pins[key]
	if m.stale && !copied {
		d, ok = "", false
	}
	if m.known[key] = d; !ok {
		delete(m.known, key)
	}
	return d, nil
}

func (m *member) Known(pod policy.Pod, image string) (cluster.Pinned, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if pod.Owner == nil {
		return cluster.Pinned{}, false
	}
	d, ok := m.known[pod.Owner.UID+" "+image]
	return cluster.Pinned{Digest: d, Node: "other", At: time.Unix(0, 0)}, ok
}

func (m *member) Claim(_ context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error) {
	if m.beside != nil {
		m.beside()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if m.refuses != nil {
		return "", m.refuses
	}
	if m.foreign {
		return "", errForeign
	}
	key := pod.Owner.UID + " " + image
	if m.pins[key] == "" {
		m.pins[key] = d
	}
	m.known[key] = m.pins[key]
	return m.pins[key], nil
}

func (m *member) ClaimProvisional(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error) {
	return m.Claim(ctx, pod, image, d)
}

func (m *member) PullPolicies(context.Context, policy.Pod, string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.policies, m.refuses
}

func (m *member) Lost(policy.Pod, string, digest.Digest, cluster.Pinned) {}

// newMember returns a node of a cluster whose policy pins everything for workloads.
func newMember(t *testing.T, c *fakeCluster, strict bool) *env {
	t.Helper()
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload})
	e.join(c, strict)
	return e
}

// join makes the node one of a cluster.
func (e *env) join(c *fakeCluster, strict bool) {
	m := &member{fakeCluster: c, known: make(map[string]digest.Digest)}
	e.member = m
	e.share(m, strict)
}

// share makes claims decide the pins that the node shares.
func (e *env) share(claims cluster.Claimer, strict bool) {
	e.authority = cluster.New(cluster.Config{Claims: claims, Pins: e.pins, Node: e.Decider, Policy: e.Decider.policy, Strict: strict})
	e.Decider.cluster = func() Cluster { return e.authority }
}

func webPod(name string) policy.Pod {
	return policy.Pod{
		Namespace: "shop", Name: name + "2x9z", UID: "uid of " + name, Labels: map[string]string{"revision": strings.Split(name, "-")[1]},
	}
}

// pull decides for a pod, and pins as a pull does. It returns the version that the pod runs.
func (e *env) pull(t *testing.T, pod policy.Pod) (string, error) {
	t.Helper()
	q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: pod})
	if err != nil {
		return "", err
	}
	v, err := e.Decide(e.ctx, q)
	if err != nil {
		return "", err
	}
	for range 2 {
		var moved *MovedError
		if v, err = e.pinFirstUse(e.ctx, v); !errors.As(err, &moved) {
			break
		}
		v = moved.Verdict
	}
	if err != nil {
		return "", err
	}
	return version(v.Root.Digest), nil
}

func (e *env) wantPull(t *testing.T, pod policy.Pod, want string) {
	t.Helper()
	got, err := e.pull(t, pod)
	if err != nil || got != want {
		t.Errorf("pod %s: got %s, %v, want %s", pod.Name, got, err, want)
	}
}

var firstScope = policy.OwnerScope("shop", policy.Owner{Kind: "ReplicaSet", Name: "web-1", UID: "uid-1"})

// wantCopy fails the test unless the node has a copy of a pin of the cluster.
func (e *env) wantCopy(t *testing.T, want string) {
	t.Helper()
	held, ok := e.pins.Get(e.id(firstScope))
	if !ok || version(held.Root.Digest) != want || held.By != pin.ByCluster || held.Provisional != nil {
		t.Errorf("got pin %+v, want a copy of the cluster's pin to %s", held, want)
	}
}

// TestClusterAgrees runs the digest of the first node on all nodes, for one revision.
func TestClusterAgrees(t *testing.T) {
	c := newFakeCluster()
	a, b := newMember(t, c, false), newMember(t, c, false)
	b.ref = a.ref
	a.wantPull(t, webPod("web-1-a"), "old")
	a.registry.tag.Store("new")
	b.wantPull(t, webPod("web-1-b"), "old")
	a.wantPull(t, webPod("web-1-c"), "old")
	b.wantPull(t, webPod("web-2-d"), "new")
	a.wantPull(t, webPod("web-2-e"), "new")
	a.wantCopy(t, "old")
	b.wantCopy(t, "old")
}

// TestClusterLost runs the winner's digest if another node claims first while this one resolves the tag.
func TestClusterLost(t *testing.T) {
	c := newFakeCluster()
	a, b := newMember(t, c, false), newMember(t, c, false)
	b.ref = a.ref
	c.beside = func() {
		c.beside = nil
		a.registry.tag.Store("new")
		b.wantPull(t, webPod("web-1-b"), "new")
	}
	a.wantPull(t, webPod("web-1-a"), "new")
	a.wantCopy(t, "new")
	held, _ := a.pins.Get(a.id(firstScope))
	wantEqual(t, "the tag of the loser", version(held.Drift.Digest), "old")
}

// TestClusterContainer pins and resolves for containers that are created without a pull.
func TestClusterContainer(t *testing.T) {
	c := newFakeCluster()
	a, b := newMember(t, c, false), newMember(t, c, false)
	b.ref = a.ref
	held, err := a.pinUse(a.ctx, Used{Ref: a.ref, pod: webPod("web-1-a"), Root: roots["old"], Verified: true})
	if err != nil || version(held.Root.Digest) != "old" {
		t.Fatalf("got %+v, %v, want the digest on the node", held, err)
	}
	a.wantCopy(t, "old")
	b.ref = a.ref
	b.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	q, err := b.described(b.ctx, b.ref, webPod("web-1-b"))
	if err != nil || q.Policy.Scope != firstScope || q.Pin == nil || version(q.Pin.Root.Digest) != "old" {
		t.Fatalf("got %+v, %v, want the cluster's digest", q, err)
	}
	if held, err = b.pinUse(b.ctx, Used{Ref: b.ref, pod: webPod("web-1-b"), Root: roots["new"], Verified: true}); err != nil || version(held.Root.Digest) != "old" {
		t.Errorf("got %+v, %v, want the cluster's digest instead of the one on the node", held, err)
	}
	if d, ok, err := b.looked(b.ctx, b.ref.String(), webPod("web-1-b")); err != nil || !ok || version(d.Digest()) != "old" {
		t.Errorf("got %s, %v, want the cluster's digest", d, err)
	}
}

// TestClusterUnverified claims nothing for a container whose image the verifiers do not accept, whether the API server
// answers or not. Such a container uses the pin that the cluster has.
func TestClusterUnverified(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	e.put(t, "old", ownTarget, imagepin.SourceImported, nil, 1)
	use := Used{Ref: e.ref, pod: webPod("web-1-a"), Root: roots["old"]}
	for name, refuses := range map[string]error{"the API server answers": nil, "the API server is away": errAway} {
		c.refuses = refuses
		held, err := e.pinUse(e.ctx, use)
		if err != nil || held != nil || len(e.pins.List()) != 0 || len(c.pins) != 0 {
			t.Errorf("%s: got %+v, %v, claims %v, want no pin", name, held, err, c.pins)
		}
	}
	c.refuses = nil
	for _, claimed := range []string{"new", "old"} {
		c.pins["uid-1 "+e.ref.String()] = roots[claimed].Digest
		held, err := e.pinUse(e.ctx, use)
		if err != nil || held == nil || version(held.Root.Digest) != claimed {
			t.Errorf("got %+v, %v, want the cluster's pin to %s", held, err, claimed)
		}
	}
	e.wantCopy(t, "old")
}

// TestClusterRefreshed follows an ImagePin that a person has moved, and resolves the tag again if it was removed.
func TestClusterRefreshed(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	e.wantPull(t, webPod("web-1-a"), "old")
	for key := range c.pins {
		c.pins[key] = roots["new"].Digest
	}
	e.wantPull(t, webPod("web-1-b"), "new")
	e.wantCopy(t, "new")
	clear(c.pins)
	e.wantPull(t, webPod("web-1-c"), "old") // what the tag resolves to
	e.wantCopy(t, "old")
}

// TestClusterCopyIsConfirmed drops the copy of a pin only after an answer that is not from the API server's cache.
func TestClusterCopyIsConfirmed(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.stale = true
	e.wantPull(t, webPod("web-1-a"), "old")
	e.registry.tag.Store("new")
	e.wantPull(t, webPod("web-1-b"), "old")
	e.wantCopy(t, "old")
}

// TestClusterRefusesWrites starts a container with the provisional pin of its pod if the API server answers reads only.
func TestClusterRefusesWrites(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.beside = func() { c.refuses = errAway }
	again := func() { c.refuses = nil } // what reads get
	e.wantPull(t, webPod("web-1-a"), "old")
	wantEqual(t, "provisional pins", len(e.pins.Provisional()), 1)
	e.registry.tag.Store("new")
	again()
	held, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-a"), Root: roots["old"], Verified: true})
	noError(t, err)
	wantEqual(t, "digest", held.Root.Digest, roots["old"].Digest)
	again()
	e.wantPull(t, webPod("web-1-b"), "old")
	wantEqual(t, "provisional pins", len(e.pins.Provisional()), 1)
}

// TestClusterStrict fails a pod whose pin is not known while the API server does not answer.
func TestClusterStrict(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, true)
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = errAway
	e.wantPull(t, webPod("web-1-b"), "old")
	// A container of a pod whose image is on the node.
	held, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-1-c"), Root: roots["old"], Verified: true})
	noError(t, err)
	wantEqual(t, "digest", held.Root.Digest, roots["old"].Digest)
	if _, err := e.pull(t, webPod("web-2-c")); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ClusterUnavailable", err)
	}
	if _, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: webPod("web-2-c"), Root: roots["old"], Verified: true}); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want ClusterUnavailable", err)
	}
	wantEqual(t, "pins", len(e.pins.List()), 1)
}

// TestClusterRefuses fails a claim that the API server refuses, and pins nothing.
func TestClusterRefuses(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.beside = func() {
		c.refuses = &imagepin.Error{Reason: imagepin.ClaimRefused, Class: errdefs.ErrPermissionDenied}
	}
	if _, err := e.pull(t, webPod("web-1-a")); !errdefs.IsPermissionDenied(err) {
		t.Errorf("got %v, want ClaimRefused", err)
	}
	wantEqual(t, "pins", len(e.pins.List()), 0)
}

// TestClusterGone names the node that has pinned a digest which the registry does not have.
func TestClusterGone(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.pins["uid-1 "+e.ref.String()] = digest.FromString("gone")
	e.registry.tag.Store("gone")
	_, err := e.pull(t, webPod("web-1-a"))
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.PinnedDigestGone || !strings.Contains(err.Error(), "by node other") ||
		!strings.Contains(err.Error(), "kubectl imagepin refresh --namespace shop replicaset/web-1") {
		t.Errorf("got %v, want PinnedDigestGone with the node", err)
	}
}

// TestClusterTagDeleted pulls a tag that was deleted after its digest was pinned. A node with a copy of the ImagePin decides
// as one without: the registry must accept the credential for the digest.
func TestClusterTagDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		image    bool  // it is on the node, with a proof
		away     bool  // the API server does not answer
		byDigest int32 // the registry's answer for the digest
		reason   imagepin.Reason
		class    error
	}{
		"the image is on the node":                         {image: true},
		"the image is not on the node":                     {},
		"the API server is away":                           {image: true, away: true},
		"unauthorized":                                     {image: true, byDigest: 401, reason: imagepin.PullAccessDenied, class: errdefs.ErrUnauthenticated},
		"forbidden":                                        {image: true, byDigest: 403, reason: imagepin.PullAccessDenied, class: errdefs.ErrPermissionDenied},
		"unavailable":                                      {byDigest: 503, reason: imagepin.CannotPullImageManifest, class: errdefs.ErrUnavailable},
		"the digest is gone, and not on the node":          {byDigest: 404, reason: imagepin.PinnedDigestGone, class: errdefs.ErrNotFound},
		"the digest is gone, but the image is on the node": {image: true, byDigest: 404, reason: imagepin.CannotPullImageManifest, class: errdefs.ErrNotFound},
	} {
		for _, behavior := range []policy.Behavior{policy.Default, policy.Always} {
			t.Run(name+", "+string(behavior), func(t *testing.T) {
				c := newFakeCluster()
				e := newEnv(t, policy.Rule{Behavior: behavior, Consistency: policy.Workload})
				e.join(c, false)
				mirror := e.addOpenMirror(t)
				var hook *logtest.Hook
				e.ctx, hook = logged(e.ctx)
				e.wantPull(t, webPod("web-1-a"), "old")
				if test.image {
					e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
				}
				if test.away {
					c.refuses = errAway
				}
				e.registry.tag.Store("deleted")
				e.registry.byDigest.Store(test.byDigest)
				before := e.registry.requests.Load()
				q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-b")})
				noError(t, err)
				v, err := e.Decide(e.ctx, q)
				wantEqual(t, "requests to the mirror", mirror.requests.Load(), 0)
				e.wantCopy(t, "old")
				if test.reason != "" {
					wantError(t, err, test.reason, test.class)
					if test.reason == imagepin.PinnedDigestGone && !strings.Contains(err.Error(), "by node other") {
						t.Errorf("got %v, want the node that has created the ImagePin", err)
					}
					return
				}
				noError(t, err)
				wantEqual(t, "requests", e.registry.requests.Load()-before, 2)
				wantEqual(t, "digest", version(v.Root.Digest), "old")
				wantEqual(t, "proof", v.Proof, e.resolver.Proof(e.ref, resolve.Credential{}, roots["old"].Digest))
				wantEqual(t, "a session, and the pin", v.Session != nil && v.Pin != nil && v.FirstUse == nil, true)
				wantEqual(t, "a fallback, or the digest of the tag", v.Fallback() || v.Registry != nil || e.movesTag(v), false)
				logged := slices.ContainsFunc(hook.AllEntries(), func(e *logrus.Entry) bool { return strings.HasPrefix(e.Message, "the registry does not have the tag") })
				wantEqual(t, "logged", logged, true)
			})
		}
	}
}

// TestClusterTagDeletedFallback uses the image on the node if the registry becomes unavailable after it has answered that there
// is no such tag. As without that answer, pull_behavior "default" does so, for a credential with a proof.
func TestClusterTagDeletedFallback(t *testing.T) {
	for name, test := range map[string]struct {
		behavior policy.Behavior
		by       *resolve.Credential
		falls    bool
	}{
		"default":         {policy.Default, &resolve.Credential{}, true},
		"without a proof": {policy.Default, &alice, false},
		"always":          {policy.Always, &resolve.Credential{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: test.behavior, Consistency: policy.Workload})
			e.join(newFakeCluster(), false)
			e.wantPull(t, webPod("web-1-a"), "old")
			e.put(t, "old", ownTarget, imagepin.SourcePull, test.by, 1)
			e.registry.tag.Store("deleted")
			e.registry.byDigest.Store(503)
			got, err := e.pull(t, webPod("web-1-b"))
			if test.falls && (err != nil || got != "old") || !test.falls && !errdefs.IsUnavailable(err) {
				t.Errorf("got %s, %v, want the image on the node: %v", got, err, test.falls)
			}
		})
	}
}

// TestClusterTagDeletedPreview explains what a pull of a deleted tag would run.
func TestClusterTagDeletedPreview(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	e.wantPull(t, webPod("web-1-a"), "old")
	e.registry.tag.Store("deleted")
	v, _, err := e.Preview(e.ctx, Request{Ref: e.ref}, firstScope)
	noError(t, err)
	if version(v.Root.Digest) != "old" || !errdefs.IsNotFound(v.RegistryError) || !strings.HasSuffix(v.Why, ", and the registry does not have the tag") {
		t.Errorf("got %s, because %s, with %v, want old, and that there is no tag", version(v.Root.Digest), v.Why, v.RegistryError)
	}
}

// TestClusterTagDeletedProvisional runs the digest of a provisional pin, as of other pins.
func TestClusterTagDeletedProvisional(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	c.refuses = errAway
	e.wantPull(t, webPod("web-1-a"), "old")
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	e.registry.tag.Store("deleted")
	e.wantPull(t, webPod("web-1-b"), "old")
}

// TestClusterOnlyForPods sends no request for calls that have no pod of the API server.
func TestClusterOnlyForPods(t *testing.T) {
	static := webPod("web-1-a")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	for name, pod := range map[string]policy.Pod{
		"no pod": {}, "static pod": static, "without a UID": {Namespace: "shop", Name: "web-1-a"},
	} {
		c := newFakeCluster()
		e := newMember(t, c, true)
		c.refuses = errAway
		if _, err := e.pull(t, pod); err != nil || c.asked != 0 {
			t.Errorf("%s: got %v after %d requests, want none", name, err, c.asked)
		}
	}
}

// TestClusterPreview explains pins of the cluster to people.
func TestClusterPreview(t *testing.T) {
	c := newFakeCluster()
	e := newMember(t, c, false)
	preview := func(scope policy.Scope, want string) {
		t.Helper()
		v, _, err := e.Preview(e.ctx, Request{Ref: e.ref}, scope)
		noError(t, err)
		if version(v.Root.Digest) != "old" || !strings.HasPrefix(v.Why, want) {
			t.Errorf("got %s, because %s, want old, because %s", version(v.Root.Digest), v.Why, want)
		}
	}
	e.wantPull(t, webPod("web-1-a"), "old")
	c.refuses = errAway
	e.wantPull(t, webPod("web-2-a"), "old")
	e.registry.tag.Store("new")
	preview(firstScope, "pinned in the cluster by node other, in scope workload/shop/ReplicaSet/web-1/uid-1 since ")
	provisional := e.pins.Provisional()
	wantEqual(t, "provisional pins", len(provisional), 1)
	preview(provisional[0].Scope, "pinned in scope "+string(provisional[0].Scope)+" since ")
}

// TestClusterOperator leaves copies of the cluster's pins to kubectl imagepin.
func TestClusterOperator(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	e.wantPull(t, webPod("web-1-a"), "old")
	_, _, err := e.SetPin(e.ctx, SetPin{Ref: e.ref, Scope: firstScope, Digest: roots["new"].Digest})
	if !errdefs.IsInvalidArgument(err) || !strings.HasSuffix(err.Error(), "kubectl imagepin set --namespace shop replicaset/web-1 "+e.ref.String()+" "+roots["new"].Digest.String()) {
		t.Errorf("set: got %v, want the command for the cluster", err)
	}
	if _, err := e.Refresh(e.ctx, e.ref, firstScope, resolve.Credential{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("refresh: got %v, want an InvalidArgument error", err)
	}
	if _, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{}); !errdefs.IsNotFound(err) {
		t.Errorf("refresh of all scopes: got %v, want NotFound", err)
	}
}

// TestLearnOwner asks for the owner of a pod if the node may need it.
func TestLearnOwner(t *testing.T) {
	static, crictl := webPod("web-1-a"), webPod("web-1-a")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	crictl.UID = ""
	workloads := policy.Rule{Match: "registry.example/shop/*", Consistency: policy.Workload}
	for name, test := range map[string]struct {
		pod         policy.Pod
		consistency policy.Consistency
		rules       []policy.Rule
		want        int
	}{
		"a pod":                      {webPod("web-1-a"), policy.Workload, nil, 1},
		"a rule for some images":     {webPod("web-1-a"), policy.Node, []policy.Rule{workloads}, 1},
		"no image of workloads":      {webPod("web-1-a"), policy.Node, nil, 0},
		"a static pod":               {static, policy.Workload, nil, 0},
		"a pod that has no UID":      {crictl, policy.Workload, nil, 0},
		"the API server is away":     {webPod("web-1-a"), policy.Workload, nil, 1},
		"no section for the cluster": {webPod("web-1-a"), policy.Workload, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := newFakeCluster()
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: test.consistency}, test.rules...)
			if name != "no section for the cluster" {
				e.join(c, false)
			}
			if name == "the API server is away" {
				c.refuses = errAway
			}
			e.LearnOwner(e.ctx, test.pod)
			wantEqual(t, "requests", c.owners, test.want)
		})
	}
}

// TestKnownOwner finds the owner of a pod without a request.
func TestKnownOwner(t *testing.T) {
	e := newMember(t, newFakeCluster(), false)
	e.wantPull(t, webPod("web-1-a"), "old")
	for name, want := range map[string]string{"web-1-b2x9z": "web-1", "web-2-b2x9z": "", "web-1-b-2x9z": "", "other": ""} {
		got := e.WithKnownOwner(policy.Pod{Namespace: "shop", Name: name, UID: "1"}).Owner
		if got == nil && want != "" || got != nil && got.Name != want {
			t.Errorf("%s: got %+v, want %q", name, got, want)
		}
	}
}
