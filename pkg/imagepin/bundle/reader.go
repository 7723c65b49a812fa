package bundle

import (
	"context"
	"errors"
	"io"
	"iter"
	"os"
	"slices"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// Bundle is an open bundle. Its methods that return metadata can be called by several goroutines.
type Bundle struct {
	path string
	file *os.File
	info os.FileInfo

	id          digest.Digest
	lock        *lock.Lock
	description Description // without Omitted and Absent
	closure     *closure
	own         []fileEntry // the entries before those of images
	metadata    metadata
	size        int64 // of the archive
}

// fileEntry is an entry of the archive.
type fileEntry struct {
	file    string // the name of an entry that is not a blob
	digest  digest.Digest
	size    int64
	blob    uint32 // in the closure, if it is of an image
	ofImage bool
}

func (e fileEntry) name() string {
	if e.file != "" {
		return e.file
	}
	return blobName(e.digest)
}

// Open opens a bundle. It reads and checks all but the layers: a success means that the metadata is as the lock in it requires,
// but [Bundle.Verify] has to check the rest. The file must not change until Close.
//
// Beside the lock, an open bundle keeps about 120 bytes for each blob, and up to 4 MiB of metadata; of a compressed bundle with more
// metadata also three frames of 4 MiB. A bundle has at most 131,072 blobs, and 65,536 descriptors of manifests that are absent. Open
// fails with [imagepin.InvalidBundle] (ErrInvalidArgument), also at a limit.
func Open(path string) (*Bundle, error) {
	b := &Bundle{path: path}
	if err := b.open(); err != nil {
		if b.file != nil {
			_ = b.file.Close() // it was only read
		}
		return nil, invalid(path, err)
	}
	return b, nil
}

func (b *Bundle) open() error {
	a, err := b.openFile()
	if err != nil {
		return err
	}
	defer a.close()
	if head, _ := a.r.Peek(longestMagic); otherCompression(head) != nil { // readMetadata returns the error of Peek
		return otherCompression(head)
	}
	return b.readMetadata(a)
}

// ID returns the digest of a bundle's own manifest, which names the lock and the description of the bundle: bundles with equal
// IDs have equal content. It reads only the beginning of the file, and does not check the rest. It fails with
// [imagepin.InvalidBundle] (ErrInvalidArgument).
func ID(path string) (digest.Digest, error) {
	b := &Bundle{path: path}
	a, err := b.openFile()
	if b.file != nil {
		defer b.file.Close()
	}
	if err != nil {
		return "", invalid(path, err)
	}
	defer a.close()
	_, own, err := b.readIndex(a)
	return own.Digest, invalid(path, err)
}

// openFile opens the file, and starts to read the archive.
func (b *Bundle) openFile() (*archive, error) {
	// A FIFO or a device is not opened.
	info, err := os.Stat(b.path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	if b.file, err = os.Open(b.path); err != nil {
		return nil, err
	}
	if b.info, err = b.file.Stat(); err != nil {
		return nil, err
	}
	if !os.SameFile(info, b.info) {
		return nil, errors.New("the file changed while it was opened")
	}
	return openArchive(b.file, b.info.Size())
}

// ID returns what [ID] returns for the file.
func (b *Bundle) ID() digest.Digest { return b.id }

// Close closes the file.
func (b *Bundle) Close() error {
	b.metadata.close()
	return b.file.Close()
}

// Lock returns the lock in the bundle.
func (b *Bundle) Lock() *lock.Lock { return b.lock }

// LockDigest returns the digest of the lock in YAML.
func (b *Bundle) LockDigest() digest.Digest { return b.description.Lock }

// Platforms returns the platforms that the bundle was written for, as in platforms.FormatAll. It is nil for all platforms.
func (b *Bundle) Platforms() []string { return b.description.Platforms }

// Since returns the digest of the earlier lock whose layers the bundle omits. It is empty if the bundle has all layers.
func (b *Bundle) Since() digest.Digest { return b.description.Since }

// Omitted returns the layers that the bundle omits, sorted.
func (b *Bundle) Omitted() []digest.Digest { return b.closure.omitted() }

// Absent returns the manifests of other platforms that the bundle does not have, ordered by the digest of the manifest.
func (b *Bundle) Absent() []Absent { return b.closure.allAbsent() }

// Root returns the descriptor of the index or manifest of an image, as published.
func (b *Bundle) Root(d digest.Digest) (ocispec.Descriptor, bool) {
	n, of, ok := b.closure.find(d)
	if !ok || of.flags&isRoot == 0 {
		return ocispec.Descriptor{}, false
	}
	return b.closure.desc(n), true
}

// Has reports whether the bundle has a blob, for example a layer.
func (b *Bundle) Has(d digest.Digest) bool { return b.closure.has(d, isNeeded) }

// entries returns the entries of the archive in their order.
func (b *Bundle) entries() iter.Seq[fileEntry] {
	return func(yield func(fileEntry) bool) {
		for _, e := range b.own {
			if !yield(e) {
				return
			}
		}
		c := b.closure
		for _, group := range [][]uint32{c.indexes, c.manifests, c.configs, c.layers} {
			for _, n := range group {
				of := c.at(n)
				e := fileEntry{digest: c.blobs.Digest(int(n)), size: of.size, blob: n, ofImage: true}
				if !yield(e) {
					return
				}
			}
		}
	}
}

// Blobs returns the number of blobs of images in the bundle, and the sum of their sizes in bytes.
func (b *Bundle) Blobs() (n int, size int64) { return b.closure.number, b.closure.size }

// Size returns the size of the archive in bytes, before compression.
func (b *Bundle) Size() int64 { return b.size }

// FileSize returns the size of the file in bytes.
func (b *Bundle) FileSize() int64 { return b.info.Size() }

// Verify reads the whole file and checks that each entry is as declared, that no content is missing and nothing else is in the
// file, and that the file did not change since Open. progress is called with the number of bytes of the archive that were read,
// and that it has; it can be nil. It fails with [imagepin.InvalidBundle] (ErrInvalidArgument), or if ctx is canceled.
func (b *Bundle) Verify(ctx context.Context, progress func(done, total int64)) error {
	if progress == nil {
		progress = func(int64, int64) {}
	}
	var done int64
	buffer := make([]byte, readSize)
	return b.scan(ctx, func(e fileEntry, content io.Reader) error {
		for {
			n, err := content.Read(buffer)
			done += int64(n)
			progress(min(done, b.size), b.size)
			if errors.Is(err, io.EOF) {
				done += padding(e.size) + tarBlock
				return nil
			}
			if err != nil {
				return err
			}
		}
	}, func() { progress(b.size, b.size) })
}

// ReadBlobs calls each for the blobs of images that want accepts, in the order of the archive: indexes, manifests, configurations
// and layers. The reader fails with [imagepin.InvalidBundle] (ErrInvalidArgument) at its end if the content does not match the
// digest. ReadBlobs returns the errors of each, and fails as Verify does.
func (b *Bundle) ReadBlobs(ctx context.Context, want func(ocispec.Descriptor) bool, each func(ocispec.Descriptor, io.Reader) error) error {
	return b.scan(ctx, func(e fileEntry, content io.Reader) error {
		if !e.ofImage {
			return nil
		}
		d := b.closure.desc(e.blob)
		if !want(d) {
			return nil
		}
		if err := each(d, content); err != nil {
			return &callerError{err}
		}
		return nil
	}, func() {})
}

// callerError is an error of a function of the caller.
type callerError struct{ error }

// scan calls visit for each entry.
func (b *Bundle) scan(ctx context.Context, visit func(fileEntry, io.Reader) error, ended func()) error {
	err := b.scanEntries(ctx, visit, ended)
	var caller *callerError
	if errors.As(err, &caller) {
		return caller.error
	}
	return invalid(b.path, err)
}

func (b *Bundle) scanEntries(ctx context.Context, visit func(fileEntry, io.Reader) error, ended func()) error {
	if err := sameFile(b.file, b.path, b.info); err != nil {
		return err
	}
	a, err := openArchive(b.file, b.info.Size())
	if err != nil {
		return err
	}
	defer a.close()
	for e := range b.entries() {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := a.next(e.name(), e.size); err != nil {
			return err
		}
		content := &verified{ctx: ctx, path: b.path, entry: e, r: a, verifier: e.digest.Verifier()}
		if err := visit(e, content); err != nil {
			return err
		}
	}
	if err := a.end(); err != nil {
		return err
	}
	if err := sameFile(b.file, b.path, b.info); err != nil {
		return err
	}
	ended()
	return nil
}

// verified reads the content of an entry, and checks its digest.
type verified struct {
	ctx      context.Context
	path     string
	entry    fileEntry
	r        *archive
	verifier digest.Verifier
}

func (v *verified) Read(p []byte) (int, error) {
	if v.ctx.Err() != nil {
		return 0, context.Cause(v.ctx)
	}
	n, err := v.r.Read(p)
	_, _ = v.verifier.Write(p[:n]) // a hash accepts all writes
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, invalid(v.path, &entryError{v.entry.name(), err})
	case !v.verifier.Verified():
		return n, invalid(v.path, &entryError{v.entry.name(), errors.New("its content does not match its digest")})
	}
	return n, io.EOF
}

// platformStrings returns platforms as in [Description.Platforms].
func platformStrings(all []ocispec.Platform) []string {
	var names []string
	for _, p := range all {
		names = append(names, platforms.FormatAll(platforms.Normalize(p)))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
