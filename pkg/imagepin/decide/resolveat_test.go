package decide

import (
	"net/http"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// TestResolveAtOrigin resolves a tag that a mirror with the capability resolve has at an older digest.
func TestResolveAtOrigin(t *testing.T) {
	type lookup func(t *testing.T, e *env) (string, error)
	pull := func(t *testing.T, e *env) (string, error) {
		v, err := e.Decide(e.ctx, e.asked(t, policy.Pod{}))
		return version(v.Root.Digest), err
	}
	for name, c := range map[string]struct {
		rule   policy.Rule
		local  bool         // the old image is on the node
		pinned policy.Scope // to the old image
		away   bool         // the origin
		lookup lookup
		want   string // "" if it fails
		// The requests to both. containerd repeats a request after a 5xx.
		origin, mirror int64
	}{
		"as containerd": {rule: policy.Rule{ResolveAt: policy.ResolveAtHosts}, lookup: pull, want: "old", mirror: 1},
		"at the origin": {lookup: pull, want: "new", origin: 1},
		"pinned":        {rule: policy.Rule{Consistency: policy.Node}, pinned: policy.NodeScope, lookup: pull, want: "old", origin: 1},
		"away, absent":  {away: true, lookup: pull, origin: 2},
		"away, default": {away: true, local: true, lookup: pull, want: "old", origin: 2},
		"away, always":  {rule: policy.Rule{Behavior: policy.Always}, away: true, local: true, lookup: pull, origin: 2},
		"prefer-cached": {rule: policy.Rule{Behavior: policy.PreferCached}, away: true, local: true, lookup: pull, want: "old"},
		"by digest": {away: true, want: "old", mirror: 1, lookup: func(t *testing.T, e *env) (string, error) {
			v, err := e.Decide(e.ctx, Request{Ref: e.byDigest(t, "old")})
			return version(v.Root.Digest), err
		}},
		"refresh": {rule: policy.Rule{Consistency: policy.Node}, pinned: policy.NodeScope, want: "new", origin: 1, lookup: func(t *testing.T, e *env) (string, error) {
			r, err := e.Refresh(e.ctx, e.ref, "", resolve.Credential{})
			return version(r.Verdict.Root.Digest), err
		}},
		"preview": {want: "new", origin: 1, lookup: func(t *testing.T, e *env) (string, error) {
			v, rule, err := e.Preview(e.ctx, Request{Ref: e.ref}, "")
			wantEqual(t, "rule", rule.ResolveAt, policy.ResolveAtOrigin)
			return version(v.Root.Digest), err
		}},
		"resolve": {want: "new", origin: 1, lookup: func(t *testing.T, e *env) (string, error) {
			r, err := e.Resolve(e.ctx, e.ref, resolve.Credential{})
			return version(r.Root.Digest), err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.rule.Behavior == "" {
				c.rule.Behavior = policy.Default
			}
			if c.rule.Consistency == "" {
				c.rule.Consistency = policy.Off
			}
			if c.rule.ResolveAt == "" {
				c.rule.ResolveAt = policy.ResolveAtOrigin
			}
			e := newEnv(t, c.rule)
			mirror := e.addMirror(t, `"pull", "resolve"`)
			e.registry.tag.Store("new")
			if c.local {
				e.put(t, "old", ownTarget, imagepin.SourcePull, &resolve.Credential{}, 1)
			}
			if c.pinned != "" {
				e.make(t, c.pinned, "old", pin.ByOperator, false)
			}
			if c.away {
				e.registry.status.Store(http.StatusServiceUnavailable)
			}
			got, err := c.lookup(t, e)
			if c.want == "" && (err == nil || !resolve.Unavailable(err)) || c.want != "" && err != nil {
				t.Errorf("got %v", err)
			}
			if c.want != "" {
				wantEqual(t, "digest", got, c.want)
			}
			wantEqual(t, "requests to the origin", e.registry.requests.Load(), c.origin)
			wantEqual(t, "requests to the mirror", mirror.requests.Load(), c.mirror)
		})
	}
}

// TestResolveAtOriginWithoutTag deletes the tag of a pin at its origin. The mirror has the digest.
func TestResolveAtOriginWithoutTag(t *testing.T) {
	e := newEnv(t, policy.Rule{Behavior: policy.Always, Consistency: policy.Node, ResolveAt: policy.ResolveAtOrigin})
	mirror := e.addMirror(t, `"pull", "resolve"`)
	e.make(t, policy.NodeScope, "old", pin.ByOperator, false)
	e.registry.tag.Store("gone")
	v, err := e.Decide(e.ctx, e.asked(t, policy.Pod{}))
	noError(t, err)
	wantEqual(t, "digest", version(v.Root.Digest), "old")
	wantEqual(t, "requests to the origin", e.registry.requests.Load(), 1)
	wantEqual(t, "requests to the mirror", mirror.requests.Load(), 1)
}
