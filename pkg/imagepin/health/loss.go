package health

import (
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// NoHandler is the reason of the loss of a key that no pod can use.
const NoHandler = "no runtime handler has its target"

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
	// Blob is a blob with a damaged or unreadable file that the key does not need. It is empty if the key itself is lost.
	Blob digest.Digest
	// Record is the record of another tool's image that has no key yet. It is empty for an image that has had a key.
	Record string
	// Moved reports whether the image is ready under the same reference, but in the snapshotter that was the default before.
	Moved bool
}

// Lost reports whether a recorded key is not ready, and why. A key of the default platform can be ready without a runtime
// handler: the default snapshotter has changed since, and the image has not been used in the new one.
func (c *Checker) Lost(e imagepin.Entry, have *Inventory) (Loss, bool) {
	if _, ok := c.config.Runtimes().ForTarget(e.Target); !ok &&
		!(have.former[e.Target.Snapshotter] && e.Target.Platform == c.config.Runtimes().Default().Target.Platform) {
		return Loss{Entry: e, Reason: NoHandler}, true
	}
	why := have.Missing(e)
	if why == "" {
		return Loss{}, false
	}
	whole := have.contentProblem(e) == ""
	_, silent := have.unavailable[e.Target.Snapshotter]
	return Loss{
		Entry: e, Reason: why, Unpackable: whole, Unknown: whole && silent || have.unreadable(e),
		MissingDirectory: have.files.noDirectory[snapshotOf(e)] != "",
	}, true
}

func snapshotOf(e imagepin.Entry) store.Snapshot {
	return store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: e.ChainID}
}
