package health

import (
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// Blob is the record of a blob.
type Blob struct {
	Size         int64 // bytes
	FromRegistry bool  // see the function [FromRegistry]
}

// Blob returns the record of a blob. ok is false if there was none.
func (inv *Inventory) Blob(d digest.Digest) (_ Blob, ok bool) {
	size, ok := inv.files.sizes[d]
	return Blob{Size: size, FromRegistry: !inv.files.loaded[d]}, ok
}

// FromRegistry reports whether a blob came from a registry, and not from a file: containerd labels it with its registry.
func FromRegistry(i content.Info) bool {
	for label := range i.Labels {
		if strings.HasPrefix(label, labels.LabelDistributionSource) {
			return true
		}
	}
	return false
}

// needed returns the blobs that an entry needs, see [blobs.Image.Needed].
func (inv *Inventory) needed(e imagepin.Entry) (needed []blobs.Need, indexGone bool) {
	needed, indexGone, _ = blobs.ImageOf(e).Needed(inv.look) // look does not fail
	return needed, indexGone
}

func (inv *Inventory) look(d digest.Digest) (blobs.Found, error) {
	_, recorded := inv.blobs[d]
	return blobs.Found{Recorded: recorded, Refs: inv.files.refs[d], Intact: inv.HasBlob(d)}, nil
}

// contentProblem describes the first problem of the content that an entry needs. It returns "" if all of it is present.
func (inv *Inventory) contentProblem(e imagepin.Entry) string {
	needed, indexGone := inv.needed(e)
	for _, n := range needed {
		if !inv.HasBlob(n.Digest) {
			return inv.blobProblem(n.Kind, n.Digest)
		}
	}
	if indexGone {
		return "an index between " + e.RecordTarget.Digest.String() + " and manifest " + e.Manifest.String() + " is gone"
	}
	return ""
}

// unreadable reports whether the state of at least one file of an entry's content is unknown, and no other content is
// missing or damaged. The content may be present.
func (inv *Inventory) unreadable(e imagepin.Entry) bool {
	needed, indexGone := inv.needed(e)
	unread := false
	for _, n := range needed {
		if inv.HasBlob(n.Digest) {
			continue
		}
		if inv.files.unread[n.Digest] == nil {
			return false
		}
		unread = true
	}
	return unread && !indexGone
}

// addBelow adds all recorded blobs that an entry's record keeps to a map, see [blobs.AddBelow]: those that it needs, its layers,
// and what else its index references.
func (inv *Inventory) addBelow(to map[digest.Digest]digest.Digest, e imagepin.Entry) {
	blobs.AddBelow(to, "", inv.refs, e.RecordTarget.Digest, e.Manifest, e.ImageID)
}

// refs returns what a blob references, and whether it is recorded.
func (inv *Inventory) refs(d digest.Digest) (_ []digest.Digest, recorded bool) {
	_, recorded = inv.blobs[d]
	return inv.files.refs[d].All(), recorded
}
