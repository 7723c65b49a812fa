package apply

import (
	"context"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// Bundle has the content of the images of a lock.
type Bundle interface {
	// Verify reads the whole bundle and compares it with its digests. progress is called with bytes.
	Verify(ctx context.Context, progress func(done, total int64)) error
	// Root returns the descriptor of an image.
	Root(d digest.Digest) (ocispec.Descriptor, bool)
	// Blob returns an index, a manifest or a configuration. It fails with ErrNotFound if the bundle does not have it.
	Blob(d digest.Digest) ([]byte, error)
	// Has reports whether the bundle has a blob.
	Has(d digest.Digest) bool
	// ReadBlobs calls each for the blobs that are wanted, in the order of the bundle, where layers are the last.
	ReadBlobs(ctx context.Context, want func(ocispec.Descriptor) bool, each func(desc ocispec.Descriptor, r io.Reader) error) error
}

// Request is a lock to apply.
type Request struct {
	Lock *lock.Lock
	// Bundle has the content of the images. If it is nil, they are pulled from their registries.
	Bundle Bundle
	// Name is the name of the file that the lock came from, for people.
	Name string
	// Handlers are the runtime handlers to make the images ready for. None means those of the node's lock, or all if it has no lock.
	Handlers []string
	// AllHandlers makes the images ready for all runtime handlers, whatever the node's lock was applied for. It excludes Handlers.
	AllHandlers bool
	// Credential is for the registries. The zero value means the node's own credentials.
	Credential resolve.Credential
	// BytesPerSecond limits what is received from registries. Zero means no limit.
	BytesPerSecond int64
	// DryRun verifies the lock and the bundle and changes nothing.
	DryRun bool
	// Progress is called when something has been done, one call at a time. It may be nil.
	Progress func(Progress)

	dropped digest.Digest
	// handlersOfLock reports that Handlers are those of the node's lock: some may not be configured any more.
	handlersOfLock bool
	// stored is the lock of the state that is applied or repaired, and nil for a lock from outside.
	stored *applied.Applied
	// fromBundle reports that the lock is one of the node, and its content came from a bundle.
	fromBundle bool
}

// Phase is what an apply does.
type Phase string

// The phases of an apply, in their order.
const (
	Verifying Phase = "verifying"
	Importing Phase = "importing"
	Preparing Phase = "preparing"
	Switching Phase = "switching"
)

// Progress is how far an apply is.
type Progress struct {
	Phase Phase
	// Lock is the digest of the lock.
	Lock digest.Digest
	// Done and Total are bytes of the bundle, or images that are ready, each for one target.
	Done, Total int64
	// Ref is the image that was made ready last. It may be empty.
	Ref string
}

// Change is a reference that a lock decides.
type Change struct {
	Ref string
	// Before and After are digests. Before is empty for a new reference, After for one that the lock does not name any more.
	Before, After digest.Digest
}

// Result is the result of an apply.
type Result struct {
	// Lock and Previous identify the lock of the node and the one before it. Both may be empty.
	Lock, Previous digest.Digest
	// Changes are the references whose digest changed, sorted.
	Changes []Change
	// Images is the number of images that were made ready, each counted for each target.
	Images int
	// Locked is the number of images of the lock, and MadeReady how many of them were made ready, each counted once.
	Locked, MadeReady int
	// Handlers are the runtime handlers that the images are ready for. None means all.
	Handlers []string
}
