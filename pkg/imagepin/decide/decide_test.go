package decide

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// logged returns a context whose log entries the hook records.
func logged(ctx context.Context) (context.Context, *test.Hook) {
	logger, hook := test.NewNullLogger()
	logger.SetOutput(io.Discard)
	return log.WithLogger(ctx, logrus.NewEntry(logger)), hook
}

// TestDecideDigest sends a request for a digest unless it is on the node with a proof.
func TestDecideDigest(t *testing.T) {
	alice := resolve.Credential{Username: "alice", Password: "secret"}
	for name, test := range map[string]struct {
		image    bool
		by       *resolve.Credential
		requests int64
		why      string
	}{
		"absent":  {requests: 1, why: "the reference has a digest"},
		"proved":  {image: true, by: &resolve.Credential{}, why: "the reference has a digest, which is on the node"},
		"private": {image: true, by: &alice, requests: 1, why: "the reference has a digest"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.PreferCached, Consistency: policy.Node})
			if test.image {
				e.put(t, "old", ownTarget, imagepin.SourcePull, test.by, 1)
			}
			e.make(t, policy.NodeScope, "new", pin.ByOperator, false) // a digest is not pinned
			v, err := e.Decide(e.ctx, Request{Ref: e.byDigest(t, "old"), Policy: node})
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), "old")
			wantEqual(t, "reason", v.Why, test.why)
			wantEqual(t, "requests", e.registry.requests.Load(), test.requests)
			wantEqual(t, "session", v.Session != nil, test.requests > 0)
			wantEqual(t, "pin", v.Pin == nil && v.FirstUse == nil, true)
		})
	}
}

// TestFallback uses the image on the node if the registry is unavailable, and logs it.
func TestFallback(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
	q := Request{Ref: e.ref, Policy: policy.Decision{Rule: policy.Rule{Behavior: policy.Default}}}
	v, err := e.Decide(e.ctx, q)
	noError(t, err)
	wantEqual(t, "with an answer", v.Fallback(), false)
	e.registry.status.Store(http.StatusServiceUnavailable)
	ctx, hook := logged(e.ctx)
	v, err = e.Decide(ctx, q)
	noError(t, err)
	wantEqual(t, "without an answer", v.Fallback(), true)
	wantEqual(t, "reason", v.Why, "the registry is unavailable, and the image is on the node")
	wantEqual(t, "log entries", len(hook.AllEntries()) > 0, true)
	hook.Reset()
	q.DryRun = true
	v, err = e.Decide(ctx, q)
	noError(t, err)
	wantEqual(t, "without an answer, dry run", v.Fallback(), true)
	for _, entry := range hook.AllEntries() {
		if strings.Contains(entry.Message, "using the image on the node") {
			t.Errorf("a dry run logged %q", entry.Message)
		}
	}
	e.images.entries = nil
	v, err = e.Decide(ctx, q)
	wantEqual(t, "no image", v.Fallback(), false)
	wantError(t, err, imagepin.CannotPullImageManifest, errdefs.ErrUnavailable)
	wantEqual(t, "error of the registry", v.RegistryError, err)
}

// TestDriftOfPins records on all pins of a tag what the registry returns.
func TestDriftOfPins(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	scopes := []policy.Scope{policy.NodeScope, workload}
	for _, scope := range scopes {
		e.make(t, scope, "old", pin.ByUse, false)
	}
	drift := func() (digests []digest.Digest) {
		for _, scope := range scopes {
			held, _ := e.pins.Get(e.id(scope))
			if held.Drift != nil {
				digests = append(digests, held.Drift.Digest)
			}
		}
		return digests
	}
	e.registry.tag.Store("new")
	q := Request{Ref: e.ref, DryRun: true}
	_, err := e.Decide(e.ctx, q)
	noError(t, err)
	wantEqual(t, "drift after a dry run", len(drift()), 0)
	q.DryRun = false
	_, err = e.Decide(e.ctx, q)
	noError(t, err)
	if got := drift(); len(got) != 2 || got[0] != roots["new"].Digest || got[1] != roots["new"].Digest {
		t.Errorf("got drift %v, want the new digest on both pins", got)
	}
}

// failingPins fails to write.
type failingPins struct {
	Pins
	err error
}

func (p failingPins) RecordDrift(context.Context, pin.ID, digest.Digest) error { return p.err }

func (p failingPins) Touch(context.Context, pin.ID) error { return p.err }

// TestDecideFailsIfAPinCannotBeWritten returns the error of the pin store.
func TestDecideFailsIfAPinCannotBeWritten(t *testing.T) {
	for name, behavior := range map[string]policy.Behavior{"drift": policy.Default, "use": policy.PreferCached} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: behavior, Consistency: policy.Node})
			e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
			e.make(t, policy.NodeScope, "old", pin.ByUse, false)
			cause := errors.New("disk full")
			e.Decider.pins = failingPins{e.pins, cause}
			q := e.asked(t, policy.Pod{})
			if _, err := e.Decide(e.ctx, q); !errors.Is(err, cause) {
				t.Errorf("got %v, want %v", err, cause)
			}
			if _, err := e.pinUse(e.ctx, Used{Ref: e.ref, pod: policy.Pod{}, Root: roots["old"], Verified: true}); !errors.Is(err, cause) {
				t.Errorf("PinUse: got %v, want %v", err, cause)
			}
		})
	}
}

// TestExpiredPin uses a pin that expires during the request, and makes it again.
func TestExpiredPin(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	e.registry.tag.Store("new")
	e.Decider.pins = expiringPins{e.pins, e.id(policy.NodeScope)}
	v, err := e.Decide(e.ctx, e.asked(t, policy.Pod{}))
	noError(t, err)
	wantEqual(t, "digest", version(v.Root.Digest), "old")
	if v.Pin != nil || v.FirstUse == nil || v.FirstUse.ID != e.id(policy.NodeScope) {
		t.Errorf("got verdict %+v, want a first use", v)
	}
}

// expiringPins removes a pin when it is used.
type expiringPins struct {
	*pin.Store
	id pin.ID
}

func (p expiringPins) Touch(ctx context.Context, id pin.ID) error {
	_, err := p.Remove(ctx, p.id)
	return err
}

// TestPinReason gives the scope and the time of the pin as the reason only if the pin decides.
func TestPinReason(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
	held := e.make(t, policy.NodeScope, "old", pin.ByUse, false)
	q := Request{Ref: e.ref, Policy: node}
	v, err := e.Decide(e.ctx, q)
	noError(t, err)
	wantEqual(t, "reason without drift", v.Why, "resolved by the registry")
	wantEqual(t, "proof", v.Proof, e.resolver.Proof(e.ref, q.Credential, roots["old"].Digest))
	e.registry.tag.Store("new")
	v, err = e.Decide(e.ctx, q)
	noError(t, err)
	wantEqual(t, "reason with drift", v.Why, "pinned in scope node since "+held.MadeAt.UTC().Format("2006-01-02T15:04:05Z07:00"))
	wantEqual(t, "proof for the pinned digest", v.Proof, e.resolver.Proof(e.ref, q.Credential, roots["old"].Digest))
	wantEqual(t, "digest in the registry", version(v.Registry.Digest), "new")
	wantEqual(t, "pin", v.Pin.ID, held.ID)
}

// TestWithoutTag checks that each pin survives its tag: the registry's answer for the pinned digest decides. It returns
// PinnedDigestGone if the registry has neither the tag nor the pinned digest.
func TestWithoutTag(t *testing.T) {
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}}
	revision := policy.Scope("workload/shop/revision=1")
	for name, test := range map[string]struct {
		scope    policy.Scope // of the pin, if there is one
		image    bool         // it is on the node, with a proof
		byDigest int32        // the registry's answer for the digest
		reason   imagepin.Reason
		class    error
		requests int64 // the last one of three asks for the digest as a blob
	}{
		"not pinned":                           {reason: imagepin.CannotPullImageManifest, class: errdefs.ErrNotFound, requests: 1},
		"not pinned, the image is on the node": {image: true, reason: imagepin.CannotPullImageManifest, class: errdefs.ErrNotFound, requests: 1},
		"node":                                 {scope: policy.NodeScope, requests: 2},
		"node, on the node":                    {scope: policy.NodeScope, image: true, requests: 2},
		"revision":                             {scope: revision, requests: 2},
		"revision, on the node":                {scope: revision, image: true, requests: 2},
		"lock":                                 {scope: policy.LockScope, requests: 2},
		"gone":                                 {scope: policy.NodeScope, byDigest: 404, reason: imagepin.PinnedDigestGone, class: errdefs.ErrNotFound, requests: 3},
		"revision, gone":                       {scope: revision, byDigest: 404, reason: imagepin.PinnedDigestGone, class: errdefs.ErrNotFound, requests: 3},
		"gone, on the node":                    {scope: policy.NodeScope, image: true, byDigest: 404, reason: imagepin.CannotPullImageManifest, class: errdefs.ErrNotFound, requests: 3},
		"unauthorized, on the node":            {scope: policy.NodeScope, image: true, byDigest: 401, reason: imagepin.PullAccessDenied, class: errdefs.ErrUnauthenticated},
		"forbidden, on the node":               {scope: revision, image: true, byDigest: 403, reason: imagepin.PullAccessDenied, class: errdefs.ErrPermissionDenied},
		"unavailable":                          {scope: revision, byDigest: 503, reason: imagepin.CannotPullImageManifest, class: errdefs.ErrUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Always, Consistency: policy.Workload})
			switch test.scope {
			case "":
			case policy.LockScope:
				e.lock("old")
			default:
				e.make(t, test.scope, "old", pin.ByUse, false)
			}
			if test.image {
				e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
			}
			e.registry.tag.Store("deleted")
			e.registry.byDigest.Store(test.byDigest)
			q := e.asked(t, pod)
			if test.scope == policy.NodeScope {
				q.Policy.Scope, q.Pin = policy.NodeScope, e.inScope(e.id(policy.NodeScope)).Pin
			}
			v, err := e.Decide(e.ctx, q)
			if test.requests > 0 { // after a 401, the authorizer asks again
				wantEqual(t, "requests", e.registry.requests.Load(), test.requests)
			}
			if test.reason != "" {
				wantError(t, err, test.reason, test.class)
				if test.reason == imagepin.PinnedDigestGone && !strings.Contains(err.Error(), tagIsGone) {
					t.Errorf("got %q, want %q in it", err, tagIsGone)
				}
				return
			}
			noError(t, err)
			wantEqual(t, "digest", version(v.Root.Digest), "old")
			wantEqual(t, "proof", v.Proof, e.resolver.Proof(e.ref, q.Credential, roots["old"].Digest))
			wantEqual(t, "the pin, and neither a fallback nor the digest of the tag", v.Pin != nil && v.Pin.Scope == test.scope && v.FirstUse == nil &&
				!v.Fallback() && v.Registry == nil && v.Session != nil, true)
			q.DryRun = true
			v, err = e.Decide(e.ctx, q)
			noError(t, err)
			wantEqual(t, "a dry run says that the tag is gone", version(v.Root.Digest) == "old" && errdefs.IsNotFound(v.RegistryError), true)
		})
	}
}

// TestPinnedDigestGone describes the current state of the tag.
func TestPinnedDigestGone(t *testing.T) {
	oldRoot, newRoot := roots["old"], roots["new"]
	for name, test := range map[string]struct {
		registry *string // the version in the verdict
		ref      string  // of the pin
		tag      string
		status   int32
		want     string
		requests int64
	}{
		"known":            {registry: &[]string{"new"}[0], want: "the tag now resolves to " + newRoot.Digest.String()},
		"known, unchanged": {registry: &[]string{"old"}[0], want: "the tag still resolves to this digest"},
		"moved":            {tag: "new", want: "the tag now resolves to " + newRoot.Digest.String(), requests: 1},
		"unchanged":        {tag: "old", want: "the tag still resolves to this digest", requests: 1},
		"gone":             {status: 404, want: tagIsGone, requests: 1},
		"no answer":        {status: 503, want: "the current digest of the tag is unknown: the registry did not answer", requests: 1},
		"invalid pin":      {ref: "Invalid", want: "the current digest of the tag is unknown: "},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Node})
			held := e.make(t, policy.NodeScope, "old", pin.ByUse, false)
			if test.ref != "" {
				held.Ref = test.ref
			}
			if test.tag != "" {
				e.registry.tag.Store(test.tag)
			}
			e.registry.status.Store(test.status)
			v := Verdict{Ref: e.byDigest(t, "old"), Root: oldRoot, Pin: &held}
			if test.registry != nil {
				r := roots[*test.registry]
				v.Registry = &r
			}
			cause := errdefs.ErrNotFound.WithMessage("no manifest")
			err := e.PinnedDigestGone(e.ctx, v, "linux/amd64 on own", cause)
			wantError(t, err, imagepin.PinnedDigestGone, errdefs.ErrNotFound)
			for _, part := range []string{test.want, oldRoot.Digest.String(), "in scope node", "linux/amd64 on own", held.Ref} {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("got %q, want %q in it", err, part)
				}
			}
			wantEqual(t, "cause", errors.Is(err, cause), true)
			var known *imagepin.Error
			if hint := "imagepin refresh " + held.Ref + " --scope node"; !errors.As(err, &known) || !strings.Contains(known.Hint, hint) {
				t.Errorf("got hint %q, want %q in it", known.Hint, hint)
			}
			wantEqual(t, "class", errdefs.IsNotFound(known.Class), true)
			if got := e.registry.requests.Load(); (got > 0) != (test.requests > 0) {
				t.Errorf("got %d requests, want %d", got, test.requests)
			}
		})
	}
}

// unreadable replaces a pin with one of a newer release.
func (e *env) unreadable(t *testing.T, scope policy.Scope) {
	t.Helper()
	e.make(t, scope, "old", pin.ByUse, false)
	img := images.Image{Name: e.id(scope).String(), Labels: map[string]string{"imagepin/version": "2"}}
	stored, err := e.node.Images.Get(namespaces.WithNamespace(e.ctx, pin.Namespace), img.Name)
	noError(t, err)
	for label, value := range stored.Labels {
		if strings.HasSuffix(label, "version") && value == "1" {
			img.Labels = map[string]string{label: "2"}
		}
	}
	var fields []string
	for label := range img.Labels {
		fields = append(fields, "labels."+label)
	}
	_, err = e.node.Images.Update(namespaces.WithNamespace(e.ctx, pin.Namespace), img, fields...)
	noError(t, err)
	noError(t, e.pins.Load(e.ctx))
}

// TestPinOfNewerRelease fails to decide for a pin that it cannot read.
func TestPinOfNewerRelease(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	e.unreadable(t, workload)
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}}
	wantEqual(t, "scope", e.ScopeOf(e.ref.String(), pod), workload)
	_, err := e.Decide(e.ctx, e.asked(t, pod))
	wantError(t, err, imagepin.PinOfNewerRelease, errdefs.ErrNotImplemented)
	wantEqual(t, "requests", e.registry.requests.Load(), 0)
	_, err = e.described(e.ctx, e.ref, pod)
	wantError(t, err, imagepin.PinOfNewerRelease, errdefs.ErrNotImplemented)
	_, _, err = e.Preview(e.ctx, Request{Ref: e.ref}, workload)
	wantError(t, err, imagepin.PinOfNewerRelease, errdefs.ErrNotImplemented)
	wantEqual(t, "scope of another pod", e.ScopeOf(e.ref.String(), policy.Pod{Namespace: "other"}), "")
}

// TestScopeOf applies the pins that an operator has set.
func TestScopeOf(t *testing.T) {
	pod := policy.Pod{Namespace: "shop", Labels: map[string]string{"revision": "1"}}
	type pins map[policy.Scope]pin.By
	for name, test := range map[string]struct {
		consistency policy.Consistency
		pins        pins
		want        policy.Scope
	}{
		"off, no pin":                         {policy.Off, nil, ""},
		"off, pin of a use":                   {policy.Off, pins{policy.NodeScope: pin.ByUse}, ""},
		"off, operator, node":                 {policy.Off, pins{policy.NodeScope: pin.ByOperator}, policy.NodeScope},
		"off, operator, workload":             {policy.Off, pins{workload: pin.ByOperator}, workload},
		"off, operator, both":                 {policy.Off, pins{policy.NodeScope: pin.ByOperator, workload: pin.ByOperator}, workload},
		"node, no pin":                        {policy.Node, nil, policy.NodeScope},
		"node, operator, workload":            {policy.Node, pins{workload: pin.ByOperator}, workload},
		"node, its pin, operator, workload":   {policy.Node, pins{policy.NodeScope: pin.ByUse, workload: pin.ByOperator}, policy.NodeScope},
		"workload, no pin":                    {policy.Workload, nil, workload},
		"workload, operator, node":            {policy.Workload, pins{policy.NodeScope: pin.ByOperator}, policy.NodeScope},
		"workload, its pin, operator, node":   {policy.Workload, pins{policy.NodeScope: pin.ByOperator, workload: pin.ByUse}, workload},
		"workload, refreshed pin of the node": {policy.Workload, pins{policy.NodeScope: pin.ByRefresh}, workload},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: test.consistency})
			for scope, by := range test.pins {
				e.make(t, scope, "old", by, false)
			}
			wantEqual(t, "scope", e.ScopeOf(e.ref.String(), pod), test.want)
			q := e.asked(t, pod)
			wantEqual(t, "scope of a request", q.Policy.Scope, test.want)
			wantEqual(t, "consistency", q.Policy.Consistency, test.consistency)
			wantEqual(t, "rule", e.Rule(e.ref.String()).Consistency, test.consistency)
			if scopes := e.Scopes(pod); len(scopes) == 0 || scopes[0] != workload {
				t.Errorf("got scopes %q, want %q first", scopes, workload)
			}
		})
	}
}

// TestIgnoredAnnotations are logged with the reference and the namespace.
func TestIgnoredAnnotations(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Default, Consistency: policy.Off})
	ctx, hook := logged(e.ctx)
	_, err := e.request(ctx, e.ref, policy.Pod{Namespace: "shop"})
	noError(t, err)
	wantEqual(t, "log entries without annotations", len(hook.AllEntries()), 0)
	pod := policy.Pod{Namespace: "shop", Annotations: map[string]string{policy.BehaviorAnnotation: "always"}}
	_, err = e.request(ctx, e.ref, pod)
	noError(t, err)
	entry := hook.LastEntry()
	if entry == nil || entry.Level != logrus.WarnLevel || !strings.Contains(entry.Message, policy.BehaviorAnnotation) ||
		entry.Data["ref"] != e.ref.String() || entry.Data["namespace"] != "shop" {
		t.Errorf("got log entry %+v, want a warning with %q", entry, policy.BehaviorAnnotation)
	}
}
