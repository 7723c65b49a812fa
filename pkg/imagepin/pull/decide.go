package pull

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Verdict is which digest a reference means for one pull, and why.
type Verdict struct {
	// Root is what to run.
	Root ocispec.Descriptor
	// Why says how Root was decided, in words.
	Why string
	// Registry is what the registry says that the reference means; nil where
	// it was not asked, or could not say.
	Registry *ocispec.Descriptor
	// RegistryError is why it could not.
	RegistryError error
	// Host is the registry host that was asked.
	Host string
	// Pin is the pin that holds; nil where there is none.
	Pin *pin.Pin

	session *resolve.Session
	proof   string      // of the caller's credential, where it was accepted
	toPin   *pinRequest // the pin that Root is to become; nil where none is
}

// question is what has to be decided.
type question struct {
	ref        reference.Named
	credential resolve.Credential
	decision   policy.Decision
	// target is whose image comes first of what is on the node.
	target runtimeplatform.Target
	// dry leaves pins as they are.
	dry bool
}

// toPin is the pin that the answer becomes.
func (q question) toPin() *pinRequest {
	return &pinRequest{id: q.pinID(), namespace: q.decision.Namespace, retain: q.decision.Retain}
}

func (q question) pinID() pin.ID { return pin.ID{Scope: q.decision.Scope, Ref: q.ref.String()} }

// decide finds the digest that a reference means: by the pin that holds for its
// scope, by what is on the node where the behavior does without the registry,
// or by asking. The first digest that a scope uses becomes its pin, once its
// manifest has been read: see [Puller.pinFirst].
func (p *Puller) decide(ctx context.Context, q question) (Verdict, error) {
	if d, ok := q.ref.(reference.Digested); ok {
		return p.decideDigest(ctx, q, d.Digest())
	}
	pinned := p.pinFor(q)
	if pinned == nil && q.decision.Scope != "" {
		if err := p.Pins.CheckReadable(q.pinID()); err != nil {
			return Verdict{}, err
		}
	}
	v, err := p.meaning(ctx, q, pinned)
	if err != nil {
		return v, p.withoutTag(ctx, q, pinned, err)
	}
	if v.Registry != nil && !q.dry {
		if err := p.saw(ctx, q.ref, v.Registry.Digest); err != nil {
			return v, err
		}
	}
	if q.decision.Scope == "" {
		return v, nil
	}
	// It may have been pinned, moved or unpinned while the registry was asked.
	if pinned = p.pinFor(q); pinned == nil {
		v.toPin = q.toPin()
		if q.dry {
			v.Why += "; it would be pinned"
		}
		return v, nil
	}
	return v, p.follow(ctx, q, pinned, &v)
}

// follow makes a verdict that of a pin, and notes what was seen of the tag.
func (p *Puller) follow(ctx context.Context, q question, held *pin.Pin, v *Verdict) error {
	if v.Root.Digest != held.Root.Digest {
		v.Why = fmt.Sprintf("pinned in scope %s since %s", held.Scope, held.MadeAt.UTC().Format(time.RFC3339))
	}
	v.Root, v.Pin = held.Root, held
	if v.proof != "" {
		v.proof = p.Resolver.Proof(q.ref, q.credential, held.Root.Digest)
	}
	if q.dry {
		return nil
	}
	if err := p.Pins.Touch(ctx, held.ID); err != nil {
		return err
	}
	if _, ok := p.Pins.Get(held.ID); !ok {
		v.Pin, v.toPin = nil, q.toPin() // it has just expired, and is used: it is made again
	}
	return nil
}

// saw notes, on every pin of a tag, what the registry says that it means.
func (p *Puller) saw(ctx context.Context, ref reference.Named, now digest.Digest) error {
	if !p.Pins.Pinned(ref.String()) {
		return nil
	}
	for _, held := range p.Pins.Scopes(ref.String()) {
		if err := p.Pins.Saw(ctx, held.ID, now); err != nil {
			return err
		}
	}
	return nil
}

// withoutTag is the error of a pull whose tag the registry does not have. Where
// the digest that it is pinned to is nowhere either, that is what there is to
// say: a registry takes the tags away with the digest.
func (p *Puller) withoutTag(ctx context.Context, q question, pinned *pin.Pin, err error) error {
	if pinned == nil || !errdefs.IsNotFound(err) {
		return err
	}
	byDigest, derr := reference.WithDigest(reference.TrimNamed(q.ref), pinned.Root.Digest)
	if _, here := p.local(q, pinned); derr != nil || here {
		return err
	}
	if _, derr := p.ask(ctx, q, byDigest, ""); !errdefs.IsNotFound(derr) {
		return err
	}
	return goneError(pinned, "", nowNothing, err)
}

func (p *Puller) pinFor(q question) *pin.Pin {
	if q.decision.Scope == "" {
		return nil
	}
	if held, ok := p.Pins.Get(q.pinID()); ok {
		return &held
	}
	return nil
}

// decideDigest is for a reference that says itself what it means: the registry
// is asked only where the digest is not here, or the credential is not proved.
func (p *Puller) decideDigest(ctx context.Context, q question, d digest.Digest) (Verdict, error) {
	if es := p.Store.ByRef(q.ref.String()); len(es) > 0 && p.proved(q, es[0]) {
		return Verdict{Root: es[0].Root, Why: "the reference is a digest that is here"}, nil
	}
	return p.ask(ctx, q, q.ref, "the reference is a digest")
}

// meaning finds what a tag means, pins aside: with a pin, what stands for "is
// here" is the pinned digest.
func (p *Puller) meaning(ctx context.Context, q question, pinned *pin.Pin) (Verdict, error) {
	local, here := p.local(q, pinned)
	switch behavior := q.decision.Behavior; {
	case behavior == policy.PreferCached && here,
		behavior == policy.Once && here && local.Source == imagepin.SourcePull:
		return p.unasked(ctx, q, local, fmt.Sprintf("it is here, and pull_behavior is %q", behavior))
	case behavior == policy.Default && here:
		v, err := p.ask(ctx, q, q.ref, "the registry says so")
		if err == nil || !resolve.Unavailable(err) || !p.proved(q, local) {
			return v, err
		}
		if !q.dry {
			metrics.Fallback()
			log.G(ctx).WithError(err).WithFields(log.Fields{"ref": q.ref.String(), "digest": local.Root.Digest}).
				Warn("the registry cannot be reached: what is here is used")
		}
		return Verdict{Root: local.Root, RegistryError: err, Why: "the registry cannot be reached, and it is here"}, nil
	}
	return p.ask(ctx, q, q.ref, "the registry says so")
}

// local is what the node has of a reference: the pinned digest, or else what it
// means for the question's target, or else what it has meant last.
func (p *Puller) local(q question, pinned *pin.Pin) (imagepin.Entry, bool) {
	entries := p.Store.ByRef(q.ref.String())
	if pinned != nil {
		entries = p.of(q.ref, pinned.Root.Digest)
	}
	if len(entries) == 0 && pinned != nil && pinned.Retain && p.Retainer.HoldsRoot(pinned.Root.Digest) {
		// Its keys have been removed, its content is here.
		return imagepin.Entry{
			Key: imagepin.Key{Ref: q.ref.String()}, Root: pinned.Root, Source: imagepin.SourcePull, ReadyAt: pinned.MadeAt,
		}, true
	}
	if len(entries) == 0 {
		return imagepin.Entry{}, false
	}
	return slices.MaxFunc(entries, q.compare), true
}

// compare orders what a reference means for several targets: what counts more
// comes last. The question's own target counts before others, then what was
// pulled before what came by other ways, and then what came last. Where a pull
// is enough once, what was pulled counts before all.
func (q question) compare(a, b imagepin.Entry) int {
	own := order.Bool(a.Target == q.target, b.Target == q.target)
	pulled := order.Bool(a.Source == imagepin.SourcePull, b.Source == imagepin.SourcePull)
	if q.decision.Behavior == policy.Once {
		return cmp.Or(pulled, own, a.ReadyAt.Compare(b.ReadyAt))
	}
	return cmp.Or(own, pulled, a.ReadyAt.Compare(b.ReadyAt))
}

// unasked takes what is here for a reference. A credential that is not proved
// for it is sent to the registry with the digest, and has to be accepted.
func (p *Puller) unasked(ctx context.Context, q question, local imagepin.Entry, why string) (Verdict, error) {
	if p.proved(q, local) {
		return Verdict{Root: local.Root, Why: why}, nil
	}
	byDigest, err := reference.WithDigest(reference.TrimNamed(q.ref), local.Root.Digest)
	if err != nil {
		return Verdict{}, err
	}
	r, err := p.Resolver.Authorize(ctx, byDigest, q.credential)
	v, err := p.answer(q, r, err, why)
	v.Registry = nil // it was not asked what the tag means
	return v, err
}

// proved tells whether an image may be handed out without asking its registry:
// this credential, or none, has been accepted for it, or there is no registry
// behind it.
func (p *Puller) proved(q question, e imagepin.Entry) bool {
	if e.Source == imagepin.SourceImported {
		return true
	}
	proofs := p.Resolver.Proofs(q.ref, q.credential, e.Root.Digest)
	return p.Store.HasProof(proofs...) || p.Pins.HasProof(proofs...)
}

// ask sends the question to the registry.
func (p *Puller) ask(ctx context.Context, q question, ref reference.Named, why string) (Verdict, error) {
	r, err := p.Resolver.Resolve(ctx, ref, q.credential)
	return p.answer(q, r, err, why)
}

// answer is the verdict of a registry that was asked. It proves the credential
// where the host that answered may say so.
func (p *Puller) answer(q question, r resolve.Resolved, err error, why string) (Verdict, error) {
	if err != nil {
		return Verdict{RegistryError: err}, err
	}
	v := Verdict{Root: r.Root, Registry: &r.Root, Host: r.Host, Why: why, session: r.Session}
	if r.Proves {
		v.proof = p.Resolver.Proof(q.ref, q.credential, r.Root.Digest)
	}
	return v, nil
}

// nowNothing is what a tag means that the registry does not have.
const nowNothing = "nothing: the registry has no such tag either"

// goneError says that a pinned digest is nowhere to be had. now is what the tag
// means instead.
func goneError(held *pin.Pin, target, now string, err error) error {
	return &imagepin.Error{
		Name: imagepin.PinnedDigestGone, Ref: held.Ref, For: target, Class: errdefs.ErrNotFound, Err: err,
		What: fmt.Sprintf("it is pinned to %s since %s in scope %s, which is neither on the node nor in the registry; the tag means %s",
			held.Root.Digest, held.MadeAt.UTC().Format(time.RFC3339), held.Scope, now),
		Do: fmt.Sprintf("To run what the tag means now: imagepin refresh %s --scope %s\nTo remove the pin: imagepin pin rm %s --scope %s",
			held.Ref, held.Scope, held.Ref, held.Scope),
	}
}

// tagNow says what the tag of a job means, for an error. The registry is asked
// where it has not been.
func (p *Puller) tagNow(ctx context.Context, j job) string {
	meant := j.registry
	if meant == nil {
		tag, err := reference.ParseNamed(j.pin.Ref)
		if err != nil {
			return "not known: " + err.Error()
		}
		v, err := p.ask(ctx, question{ref: tag, credential: j.credential}, tag, "")
		switch {
		case errdefs.IsNotFound(err):
			return nowNothing
		case err != nil:
			return "not known: the registry did not say"
		}
		meant = v.Registry
	}
	if meant.Digest == j.root.Digest {
		return "still this digest, but a part of it is missing there"
	}
	return meant.Digest.String()
}
