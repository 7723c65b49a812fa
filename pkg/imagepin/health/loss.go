package health

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Loss is a recorded key, and the reason why it is not ready.
type Loss struct {
	Entry  imagepin.Entry
	Reason string
	// Unpackable reports whether only the snapshot is missing. The layers may be on the node.
	Unpackable bool
	// Unknown reports whether the state of the key, or of Blob, is unknown, because the snapshotter does not respond or a
	// file cannot be read.
	Unknown bool
	// MissingDirectory reports whether the snapshot exists but its directory is gone.
	MissingDirectory bool
	// DamagedFiles reports whether the snapshot, or one below it, has files that differ from its layers.
	DamagedFiles bool
	// Unverified reports whether the key was damaged before, and nothing was found now. What it needs has to be verified: a
	// repair may have been interrupted, or an earlier check may have read more than this one.
	Unverified bool
	// Blob is a blob with a damaged or unreadable file that the key does not need. It is empty if the key itself is lost.
	Blob digest.Digest
	// Record is the record of another tool's image that has no key yet. It is empty for an image that has had a key.
	Record string
	// Moved reports whether the image is ready under the same reference, but in the snapshotter that was the default before.
	Moved bool
	// NewTarget reports whether the target of Entry is not that of the recorded key.
	NewTarget bool
	// Superseded reports whether the image is ready for a target of a runtime handler, so that the key, whose target no
	// handler has, is to be dropped.
	Superseded bool
}

// Lost reports whether a recorded key is not ready, and why. A key can be ready without a runtime handler: it is unused.
func (c *Checker) Lost(e imagepin.Entry, have *Inventory) (Loss, bool) {
	why := have.Missing(e)
	if why == "" && !e.DamagedAt.IsZero() {
		return Loss{Entry: e, Reason: "it was damaged at " + e.DamagedAt.UTC().Format(time.RFC3339) + " and has not been verified since", Unverified: true}, true
	}
	if why == "" {
		return Loss{}, false
	}
	whole := have.contentProblem(e) == ""
	_, silent := have.unavailable[e.Target.Snapshotter]
	return Loss{
		Entry: e, Reason: why, Unpackable: whole, Unknown: whole && silent || have.unreadable(e),
		MissingDirectory: have.files.noDirectory[store.SnapshotOf(e)] != "", DamagedFiles: have.filesProblem(e) != "",
	}, true
}
