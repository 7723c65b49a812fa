package health

import (
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/opencontainers/go-digest"
)

// Loss is a key that is recorded, and why it is not ready.
type Loss struct {
	Entry imagepin.Entry
	Why   string
	// Mendable tells that only the snapshot is gone: the layers may be here.
	Unpackable bool
	// Wait tells that it cannot be told now: the snapshotter does not answer, or a
	// file of its content cannot be read.
	Wait bool
	// Hollow tells that its snapshot is there without its directory.
	Hollow bool
	// Blob is a layer whose file is damaged; empty where the key itself is lost.
	Blob digest.Digest
	// Record is the record of another tool's image that is not a key yet and
	// may become one. It is empty for what has been one.
	Record string
}

// Lost reports whether a recorded key is not ready, and why.
func (c *Checker) Lost(e imagepin.Entry, have *Inventory) (Loss, bool) {
	if _, ok := c.Runtimes().ForTarget(e.Target); !ok {
		return Loss{Entry: e, Why: "no runtime handler has its target"}, true
	}
	why := have.Missing(e)
	if why == "" {
		return Loss{}, false
	}
	whole := have.HasBlob(e.RecordTarget.Digest) && have.HasBlob(e.Manifest) && have.HasBlob(e.ImageID)
	_, silent := have.silent[e.Target.Snapshotter]
	return Loss{
		Entry: e, Why: why, Unpackable: whole, Wait: whole && silent || have.unreadable(e),
		Hollow: have.files.hollow[snapshotOf(e)] != "",
	}, true
}

func snapshotOf(e imagepin.Entry) store.Snapshot {
	return store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: e.ChainID}
}
