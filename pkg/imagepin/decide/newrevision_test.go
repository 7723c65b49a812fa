package decide

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// resolving is a rule that resolves the tags of new revisions.
var resolving = policy.Rule{Behavior: policy.Default, Consistency: policy.Workload, NewRevision: policy.FromRegistry}

// newResolving returns a node with the old image of a tag that has moved.
func newResolving(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, resolving)
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	e.registry.tag.Store("new")
	return e
}

// wantNew fails the test unless Look and CreateContainer report that the revision of a pod is new, or not.
func (e *env) wantNew(t *testing.T, what string, pod policy.Pod, want bool) {
	t.Helper()
	looked, err := e.Look(e.ctx, e.ref.String(), pod)
	noError(t, err)
	if looked.New != want {
		t.Errorf("%s: Look returns New %t, want %t", what, looked.New, want)
	}
	used, err := e.Use(e.ctx, Use{Image: e.byDigest(t, "old"), Ref: e.ref, InRepository: true, Root: roots["old"], Pod: pod})
	noError(t, err)
	if used.New != want {
		t.Errorf("%s: Use returns New %t, want %t", what, used.New, want)
	}
}

// TestNewRevision resolves the tag of a revision without a pin, and of none that has one or is not known.
func TestNewRevision(t *testing.T) {
	e := newResolving(t)
	pod := webPod("web-1-a")
	e.wantNew(t, "the first pod", pod, true)
	e.wantNew(t, "no pod", policy.Pod{}, false)
	bare := pod
	bare.Labels = nil
	e.wantNew(t, "a pod without a revision", bare, false)
	static := pod
	static.Annotations = map[string]string{upstream.SourceAnnotation: "file"}
	e.wantNew(t, "a static pod", static, false)
	e.wantPull(t, pod, "new")
	e.wantNew(t, "the next pod", webPod("web-1-b"), false)
	e.wantNew(t, "the next revision", webPod("web-2-a"), true)
	e.make(t, policy.NodeScope, "old", pin.ByOperator, false)
	e.wantNew(t, "a revision for which an operator has set a pin", webPod("web-2-a"), false)

	node := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Workload})
	node.wantNew(t, "without the rule", pod, false)
}

// TestNewRevisionInCluster resolves nothing that the cluster has pinned, and nothing while the API server is away.
func TestNewRevisionInCluster(t *testing.T) {
	e := newResolving(t)
	c := newFakeCluster()
	e.join(c, false)
	e.wantNew(t, "no ImagePin", webPod("web-1-a"), true)
	e.member.pins["uid-1 "+e.ref.String()] = roots["old"].Digest
	e.wantNew(t, "an ImagePin", webPod("web-1-a"), false)
	c.refuses = errAway
	e.wantNew(t, "no answer of the API server", webPod("web-2-a"), false)
	c.refuses = nil
	wantNever := func(what string, never, known bool) {
		t.Helper()
		n, k, err := e.NeverPulls(e.ctx, e.ref.String(), webPod("web-2-a"))
		if n != never || k != known || err != nil {
			t.Errorf("%s: got %t, %t, %v, want %t, %t", what, n, k, err, never, known)
		}
	}
	c.policies = []string{"IfNotPresent", "Never"}
	wantNever("Never", true, true)
	c.policies = []string{"IfNotPresent", "Always"}
	wantNever("not Never", false, true)
	c.refuses = errAway
	wantNever("no answer", true, false)
	c.refuses = errdefs.ErrPermissionDenied
	wantNever("a refusal", true, false)
	c.refuses = errdefs.ErrNotFound
	wantNever("not a pod of the API server", false, true)
	c.refuses = errAway
	e.join(c, true)
	if _, _, err := e.NeverPulls(e.ctx, e.ref.String(), webPod("web-2-a")); !errors.Is(err, errAway) {
		t.Errorf("a strict cluster: got %v", err)
	}
}

// TestNewRevisionWithoutAnAnswer runs the image of the node if the registry does not answer, without a pin, and asks again at the next
// start.
func TestNewRevisionWithoutAnAnswer(t *testing.T) {
	e := newResolving(t)
	e.registry.status.Store(http.StatusServiceUnavailable)
	for _, pod := range []policy.Pod{webPod("web-1-a"), webPod("web-1-b")} {
		e.wantPull(t, pod, "old")
		wantEqual(t, "pins", len(e.pins.List()), 0)
		used, err := e.Use(e.ctx, Use{Image: e.byDigest(t, "old"), Ref: e.ref, InRepository: true, Root: roots["old"], Pod: pod})
		noError(t, err)
		current, err := e.Confirm(e.ctx, used) // as for an image that is not verified
		noError(t, err)
		wantEqual(t, "current", current, true)
		wantEqual(t, "pins after CreateContainer", len(e.pins.List()), 0)
	}
	wantEqual(t, "requests", e.registry.requests.Load(), 4) // HEAD and GET
	v, _, err := e.Preview(e.ctx, Request{Ref: e.ref, Target: ownTarget}, policy.WorkloadScope("shop", "revision", "1"))
	noError(t, err)
	wantEqual(t, "reason", v.Why, "the registry is unavailable, and the image is on the node; the next start asks again")
	e.registry.status.Store(0)
	e.wantPull(t, webPod("web-1-c"), "new")
	e.wantPull(t, webPod("web-1-a"), "new")
}

// TestNewRevisionRunsTheBuildBefore runs the newest image of a revision in the namespace, which the tag on the node can be older than.
func TestNewRevisionRunsTheBuildBefore(t *testing.T) {
	for scope, want := range map[policy.Scope]string{
		policy.WorkloadScope("shop", "revision", "1"): "new", policy.WorkloadScope("other", "revision", "1"): "old",
	} {
		e := newResolving(t)
		e.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 2)
		e.images.entries = slices.DeleteFunc(e.images.entries, func(entry imagepin.Entry) bool { // its tag
			return entry.Ref == e.ref.String() && version(entry.Root.Digest) == "new"
		})
		e.make(t, scope, "new", pin.ByUse, false)
		e.registry.status.Store(http.StatusServiceUnavailable)
		e.wantPull(t, webPod("web-2-a"), want)
	}
}

// TestNewRevisionThatRuns keeps the digest of a container of the pod, which the caller must be allowed to use.
func TestNewRevisionThatRuns(t *testing.T) {
	for name, test := range map[string]struct {
		running  string
		prepare  func(e *env)
		want     string
		requests int64
	}{
		"on the node":              {"old", func(*env) {}, "old", 0},
		"without a proof":          {"old", func(e *env) { e.images.proofs = nil }, "old", 1},
		"not on the node":          {"old", func(e *env) { e.images.entries = nil }, "old", 1},
		"gone":                     {"old", func(e *env) { e.images.entries = nil; e.registry.byDigest.Store(404) }, "new", 3},
		"the registry is away":     {"old", func(e *env) { e.registry.status.Store(503) }, "old", 0},
		"no container of this tag": {"", func(*env) {}, "new", 1},
	} {
		t.Run(name, func(t *testing.T) {
			e := newResolving(t)
			test.prepare(e)
			q, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a"), Target: ownTarget, Running: func(context.Context) (digest.Digest, error) {
				return roots[test.running].Digest, nil
			}})
			noError(t, err)
			v, err := e.Decide(e.ctx, q)
			noError(t, err)
			v, err = e.pinFirstUse(e.ctx, v)
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), test.want)
			wantEqual(t, "requests", e.registry.requests.Load(), test.requests)
			held, _ := e.pins.Get(q.pinID())
			wantEqual(t, "pin", version(held.Root.Digest), test.want)
		})
	}
	t.Run("pinned", func(t *testing.T) {
		e := newResolving(t)
		e.wantPull(t, webPod("web-1-a"), "new")
		_, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-b"), Running: func(context.Context) (digest.Digest, error) {
			t.Error("asked for the containers of a pod whose revision has a pin")
			return "", nil
		}})
		noError(t, err)
	})
	t.Run("unknown", func(t *testing.T) {
		e := newResolving(t)
		_, err := e.Ask(e.ctx, Call{Ref: e.ref, Pod: webPod("web-1-a"), Running: func(context.Context) (digest.Digest, error) {
			return "", errdefs.ErrUnavailable
		}})
		if !errdefs.IsUnavailable(err) {
			t.Errorf("got %v, want the error of the list of containers", err)
		}
	})
}

// TestSilentRegistry does not wait for the whole timeout again after a registry did not answer in time, and asks it all the same.
func TestSilentRegistry(t *testing.T) {
	e := newResolving(t)
	e.silence.wait = 50 * time.Millisecond
	domain := e.registry.Listener.Addr().String()
	timedOut := &imagepin.Error{Reason: imagepin.ManifestPullTimeout, Class: context.DeadlineExceeded}
	block := make(chan struct{})
	e.registry.during = func() { <-block }

	e.silence.note(domain, time.Now(), timedOut)
	if err := e.silence.last(domain); err != nil {
		t.Errorf("a failure at once counts: %v", err)
	}
	e.silence.note(domain, time.Now().Add(-silentAfter), timedOut)
	e.wantPull(t, webPod("web-1-a"), "old") // else it waits for a minute
	wantEqual(t, "pins", len(e.pins.List()), 0)
	close(block)
	e.silence.wait = time.Minute // the request has not always arrived in the time before
	e.wantPull(t, webPod("web-1-a"), "new")
	if err := e.silence.last(domain); err != nil {
		t.Errorf("the registry has answered: %v", err)
	}

	e.silence.since.Add(domain, failure{at: time.Now().Add(-silentFor), err: timedOut})
	if err := e.silence.last(domain); err != nil {
		t.Errorf("the failure is remembered for longer: %v", err)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	e.silence.note(domain, time.Now().Add(-silentAfter), timedOut)
	if _, err := e.resolveNew(ctx, Request{Ref: e.ref}, ""); !errdefs.IsCanceled(err) {
		t.Errorf("a caller that has gone: got %v", err)
	}
}

// TestNewRevisionRunsAnImageThatItMayHave passes over a newer image for which the credential of the pod has no proof, if the registry
// does not answer.
func TestNewRevisionRunsAnImageThatItMayHave(t *testing.T) {
	e := newResolving(t)
	e.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{Username: "other"}, 2) // by a pod with another secret
	e.images.entries = slices.DeleteFunc(e.images.entries, func(entry imagepin.Entry) bool {   // its tag
		return entry.Ref == e.ref.String() && version(entry.Root.Digest) == "new"
	})
	e.make(t, policy.WorkloadScope("shop", "revision", "1"), "new", pin.ByUse, false)
	e.registry.status.Store(http.StatusServiceUnavailable)
	e.wantPull(t, webPod("web-2-a"), "old")
}

// TestNewRevisionDoesNotMoveTheTag does not move the tag on the node to the image of another revision, if the registry does not answer:
// one workload does not decide for the others.
func TestNewRevisionDoesNotMoveTheTag(t *testing.T) {
	for scope, want := range map[policy.Scope]bool{
		policy.WorkloadScope("shop", "revision", "1"): false, policy.WorkloadScope("other", "revision", "1"): true,
	} {
		e := newResolving(t)
		e.put(t, "new", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 2)
		e.images.entries = slices.DeleteFunc(e.images.entries, func(entry imagepin.Entry) bool { // its tag
			return entry.Ref == e.ref.String() && version(entry.Root.Digest) == "new"
		})
		e.make(t, scope, "new", pin.ByOperator, false)
		e.registry.status.Store(http.StatusServiceUnavailable)
		v, err := e.Decide(e.ctx, e.asked(t, webPod("web-2-a")))
		noError(t, err)
		moves, err := e.Current(v)
		noError(t, err)
		wantEqual(t, "the tag follows "+version(v.Root.Digest), moves, want)
	}
}

// TestNewRevisionWhosePinIsRemoved pins nothing if an operator removes the pin of a revision while a registry does not answer.
func TestNewRevisionWhosePinIsRemoved(t *testing.T) {
	e := newResolving(t)
	scope := policy.WorkloadScope("shop", "revision", "2")
	e.make(t, scope, "old", pin.ByUse, false)
	e.registry.status.Store(http.StatusServiceUnavailable)
	e.registry.during = sync.OnceFunc(func() {
		if _, err := e.pins.Remove(e.ctx, e.id(scope)); err != nil {
			t.Error(err)
		}
	})
	e.wantPull(t, webPod("web-2-a"), "old")
	wantEqual(t, "pinned", e.pinned(scope), "")
}
