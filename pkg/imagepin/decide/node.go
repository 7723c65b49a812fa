package decide

import (
	"cmp"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Images finds the images that are ready on the node.
type Images interface {
	// ByRef returns the entries of a normalized reference, one for each target.
	ByRef(ref string) []imagepin.Entry
	// ByRoot returns the entries of a digest, for all references and targets.
	ByRoot(root digest.Digest) []imagepin.Entry
	// ByManifest returns the entries of a platform's manifest, for all references and targets.
	ByManifest(manifest digest.Digest) []imagepin.Entry
}

// Retained is the content that pins retain.
type Retained interface {
	// HoldsRoot reports whether content of a digest is retained.
	HoldsRoot(root digest.Digest) bool
	// Reserve reserves space for the content that a pin for a namespace will retain, until release is called. arrived returns how
	// many bytes of the entries are on the node; nil means all. freed reports which digests will no longer be retained by then. It
	// fails with [imagepin.RetainLimitReached].
	Reserve(namespace string, arrived func() int64, freed func(root digest.Digest) bool, entries ...imagepin.Entry) (release func(), _ error)
	// OverShare returns a function that reports whether the pins of a namespace that nothing uses give way to more bytes of another.
	OverShare(namespace string, more int64) func(namespace string) bool
}

// OfDigest returns the entries of one digest of ref's repository: the entries under the digest, and then the entries
// under the tag, which is how other tools record an image.
func OfDigest(images interface {
	ByRef(ref string) []imagepin.Entry
}, ref reference.Named, root digest.Digest) []imagepin.Entry {
	entries := images.ByRef(ref.String())
	if byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root); err == nil && byDigest.String() != ref.String() {
		entries = append(images.ByRef(byDigest.String()), entries...)
	}
	return slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// onNode returns the image of a reference on the node. This is the pinned digest, or the image for the request's
// target, or the image for another target. For a new revision, these include the images of earlier ones, of which the newest that
// the caller may have is the build before. For a removed image, retained content is enough.
func (d *Decider) onNode(q Request, pinned *pin.Pin) (imagepin.Entry, bool) {
	entries := d.images.ByRef(q.Ref.String())
	switch {
	case pinned != nil:
		entries = OfDigest(d.images, q.Ref, pinned.Root.Digest)
	case q.New:
		entries = append(entries, d.ofRevisions(q)...)
		may := func(e imagepin.Entry) bool { _, ok := d.mayHave(q, e); return ok }
		if slices.ContainsFunc(entries, may) {
			entries = slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return !may(e) })
		}
	}
	if len(entries) > 0 {
		return slices.MaxFunc(entries, q.compare), true
	}
	if pinned == nil || !pinned.Retain || !d.retained.HoldsRoot(pinned.Root.Digest) {
		return imagepin.Entry{}, false
	}
	return imagepin.Entry{
		Key: imagepin.Key{Ref: q.Ref.String()}, Root: pinned.Root, Source: imagepin.SourcePull, ReadyAt: pinned.MadeAt,
	}, true
}

// compare orders the images of a reference for several targets, best last: the image for the request's target, then a
// pulled one, then the newest. With pull_behavior "once", a pulled image comes before all others.
func (q Request) compare(a, b imagepin.Entry) int {
	own := order.Bool(a.Target == q.Target, b.Target == q.Target)
	pulled := order.Bool(a.Source == imagepin.SourcePull, b.Source == imagepin.SourcePull)
	if q.Policy.Behavior == policy.Once {
		return cmp.Or(pulled, own, a.ReadyAt.Compare(b.ReadyAt))
	}
	return cmp.Or(own, pulled, a.ReadyAt.Compare(b.ReadyAt))
}

// mayHave reports whether the caller may use an image without a request to its registry: the image has a proof of its
// credential, or of a pull without credentials, or it was imported and no registry has returned its digest since. If the
// node's lock has a copy of the image in another repository, a proof for the copy is as good.
// used is the proof, if there is one for this repository.
func (d *Decider) mayHave(q Request, e imagepin.Entry) (used string, ok bool) {
	in := append([]reference.Named{q.Ref}, d.lock.Copies(q.Ref, e.Root.Digest)...)
	if e.Source == imagepin.SourceImported && !slices.ContainsFunc(in, func(ref reference.Named) bool { return d.isPulled(ref, e.Root.Digest) }) {
		return "", true
	}
	if used, ok = d.proofs.Accepted(q.Ref, q.Credential, e.Root.Digest); ok {
		return used, true
	}
	return "", slices.ContainsFunc(in[1:], func(ref reference.Named) bool {
		_, ok := d.proofs.Accepted(ref, q.Credential, e.Root.Digest)
		return ok
	})
}

// isPulled reports whether a digest was pulled in ref's repository, for any tag and target.
func (d *Decider) isPulled(ref reference.Named, root digest.Digest) bool {
	return slices.ContainsFunc(d.inRepository(ref, root), func(e imagepin.Entry) bool { return e.Source == imagepin.SourcePull })
}

// inRepository returns the entries of one digest of ref's repository, for all tags.
func (d *Decider) inRepository(ref reference.Named, root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(d.images.ByRoot(root), func(e imagepin.Entry) bool {
		return !imagepin.InRepository(e.Ref, ref.Name())
	})
}
