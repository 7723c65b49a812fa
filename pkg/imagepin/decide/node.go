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
	// ByRoot returns the entries of a digest, of all references and targets.
	ByRoot(root digest.Digest) []imagepin.Entry
}

// Retained is the content that pins retain.
type Retained interface {
	// HoldsRoot reports whether content of a digest is retained.
	HoldsRoot(root digest.Digest) bool
	// Reserve keeps room for what a pin is to retain until release is called. freed reports which digests are released
	// by then. It fails with [imagepin.RetainLimitReached].
	Reserve(freed func(root digest.Digest) bool, entries ...imagepin.Entry) (release func(), _ error)
}

// OfDigest returns the entries of one digest of ref's repository: by the digest first, then by the tag, which is how
// another tool records it.
func OfDigest(images interface {
	ByRef(ref string) []imagepin.Entry
}, ref reference.Named, root digest.Digest) []imagepin.Entry {
	entries := images.ByRef(ref.String())
	if byDigest, err := reference.WithDigest(reference.TrimNamed(ref), root); err == nil && byDigest.String() != ref.String() {
		entries = append(images.ByRef(byDigest.String()), entries...)
	}
	return slices.DeleteFunc(entries, func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// onNode returns the image that the node has of a reference: the pinned digest, or else what the reference means for the
// question's target, or else for another. Of an image that was removed, the retained content is enough.
func (d *Decider) onNode(q Question, pinned *pin.Pin) (imagepin.Entry, bool) {
	entries := d.images.ByRef(q.Ref.String())
	if pinned != nil {
		entries = OfDigest(d.images, q.Ref, pinned.Root.Digest)
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

// compare orders the images that a reference means for several targets, the best one last: that of the question's own
// target, then one that was pulled, then the newest. With pull_behavior "once", one that was pulled is better than all
// others.
func (q Question) compare(a, b imagepin.Entry) int {
	own := order.Bool(a.Target == q.Target, b.Target == q.Target)
	pulled := order.Bool(a.Source == imagepin.SourcePull, b.Source == imagepin.SourcePull)
	if q.Policy.Behavior == policy.Once {
		return cmp.Or(pulled, own, a.ReadyAt.Compare(b.ReadyAt))
	}
	return cmp.Or(own, pulled, a.ReadyAt.Compare(b.ReadyAt))
}

// mayHave reports whether the caller gets an image without asking its registry: its credential, or none, was accepted
// for it before, or the image was imported and has no registry.
func (d *Decider) mayHave(q Question, e imagepin.Entry) bool {
	return e.Source == imagepin.SourceImported || d.proofs.Accepted(q.Ref, q.Credential, e.Root.Digest)
}

// inRepository returns the entries of one digest of ref's repository, of all its tags.
func (d *Decider) inRepository(ref reference.Named, root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(d.images.ByRoot(root), func(e imagepin.Entry) bool {
		of, err := reference.ParseNamed(e.Ref)
		return err != nil || of.Name() != ref.Name()
	})
}
