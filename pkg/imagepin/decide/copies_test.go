package decide

import (
	"testing"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// copied is a lock that has a digest in other repositories.
type copied struct {
	namesOf
	in []reference.Named
}

// Copies implements Lock.
func (c copied) Copies(_ reference.Named, d digest.Digest) []reference.Named {
	if d != roots["old"].Digest {
		return nil
	}
	return c.in
}

// TestCopiesNeedProof pulls a tag whose image the node's lock has in another repository, while the registry of the tag is down.
// The image is for those whose credential was accepted for the copy, also where an earlier version recorded it as imported.
func TestCopiesNeedProof(t *testing.T) {
	var (
		alice = resolve.Credential{Username: "alice", Password: "secret"}
		wrong = resolve.Credential{Username: "alice", Password: "wrong"}
	)
	for name, c := range map[string]struct {
		source   imagepin.Source // of the tag
		copied   imagepin.Source
		accepted *resolve.Credential // for the copy
		caller   resolve.Credential
		allowed  bool
	}{
		"no credential":                      {imagepin.SourcePull, imagepin.SourcePull, &alice, resolve.Credential{}, false},
		"wrong credential":                   {imagepin.SourcePull, imagepin.SourcePull, &alice, wrong, false},
		"the credential of the copy":         {imagepin.SourcePull, imagepin.SourcePull, &alice, alice, true},
		"a copy that is public":              {imagepin.SourcePull, imagepin.SourcePull, &resolve.Credential{}, wrong, true},
		"recorded as imported":               {imagepin.SourceImported, imagepin.SourcePull, &alice, resolve.Credential{}, false},
		"recorded as imported, accepted":     {imagepin.SourceImported, imagepin.SourcePull, &alice, alice, true},
		"from a bundle":                      {imagepin.SourceImported, imagepin.SourceImported, nil, wrong, true},
		"a bundle's copy that was not given": {imagepin.SourcePull, imagepin.SourceImported, nil, wrong, false},
	} {
		for _, behavior := range []policy.Behavior{policy.Default, policy.PreferCached, policy.Once} {
			t.Run(name+"/"+string(behavior), func(t *testing.T) {
				e := newEnv(t, policy.Rule{Behavior: behavior, Consistency: policy.Off})
				elsewhere := named(t, "copies.example/private")
				e.put(t, "old", ownTarget, c.source, nil, 1)
				e.images.entries = append(e.images.entries, imagepin.Entry{
					Key:  imagepin.Key{Ref: elsewhere.Name() + "@" + roots["old"].Digest.String(), Target: ownTarget},
					Root: roots["old"], Source: c.copied, ReadyAt: time.Unix(1, 0),
				})
				if c.accepted != nil {
					e.images.proofs = append(e.images.proofs, e.resolver.Proof(elsewhere, *c.accepted, roots["old"].Digest))
				}
				e.Decider.lock = copied{in: []reference.Named{elsewhere}}
				e.lock("old")
				e.registry.status.Store(503)
				for _, ref := range []reference.Named{e.ref, e.byDigest(t, "old")} {
					q, err := e.request(e.ctx, ref, policy.Pod{})
					noError(t, err)
					q.Credential, q.Target = c.caller, ownTarget
					v, err := e.Decide(e.ctx, q)
					// "once" uses only images that were pulled.
					allowed := c.allowed && !(ref == e.ref && behavior == policy.Once && c.source == imagepin.SourceImported)
					if (err == nil) != allowed || err != nil && !resolve.Unavailable(err) {
						t.Errorf("%s: got %s, %v, want it allowed: %v", ref, version(v.Root.Digest), err, allowed)
					}
				}
			})
		}
	}
}

// TestUsedProof checks that a verdict without a request has the proof that allows it, and the namespace that uses it, so that the use
// can be recorded. A verdict for another digest than the proof's has none.
func TestUsedProof(t *testing.T) {
	alice := resolve.Credential{Username: "alice", Password: "secret"}
	for name, c := range map[string]struct {
		behavior policy.Behavior
		status   int32
		by       *resolve.Credential // whose pull the node has a proof of
		asked    bool
	}{
		"fallback":                     {policy.Default, 503, &alice, false},
		"cached":                       {policy.PreferCached, 503, &alice, false},
		"cached, without a credential": {policy.PreferCached, 503, &resolve.Credential{}, false},
		"asked":                        {policy.Always, 0, &alice, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, policy.Rule{Behavior: c.behavior, Consistency: policy.Node})
			e.put(t, "old", ownTarget, imagepin.SourcePull, c.by, 1)
			e.registry.status.Store(c.status)
			pod := policy.Pod{Namespace: "shop"}
			q := e.asked(t, pod)
			q.Credential = alice
			v, err := e.Decide(e.ctx, q)
			noError(t, err)
			want := e.resolver.Proof(e.ref, *c.by, roots["old"].Digest)
			if c.asked != (v.Proof == want) || c.asked == (v.UsedProof == want) || v.Namespace != "shop" {
				t.Errorf("proof %q, used %q, namespace %q, want %q", v.Proof, v.UsedProof, v.Namespace, want)
			}
			if moved := e.apply(v, pin.Pin{ID: e.id(policy.NodeScope), Root: roots["new"]}); moved.UsedProof != "" {
				t.Errorf("for another digest: %q", moved.UsedProof)
			}
		})
	}
}
