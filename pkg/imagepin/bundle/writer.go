package bundle

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/readahead"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// Options are the options of [Write].
type Options struct {
	Lock *lock.Lock
	// Platforms limits the bundle to the manifests for these platforms. Without it, the bundle has all.
	Platforms []ocispec.Platform
	// Since is an earlier lock. The bundle omits layers that its images have.
	Since *lock.Lock
	// Progress is called with the number of bytes of a blob that are done, first with 0 for each blob that has to be fetched.
	// resumed is true if the bytes were in the partial file. It is called by one goroutine at a time. It can be nil.
	Progress func(desc ocispec.Descriptor, offset int64, resumed bool)
}

// Result describes a bundle that was written.
type Result struct {
	Lock      digest.Digest
	Platforms []string
	Since     digest.Digest
	Images    int   // distinct digests
	Blobs     int   // of images
	BlobsSize int64 // in bytes
	Size      int64 // of the archive in bytes, before compression
	FileSize  int64 // in bytes
	// Absent are the manifests of other platforms.
	Absent []Absent
	// Unmatched are the images without a manifest for the platforms.
	Unmatched []string
	// Omitted is the number of layers that the earlier lock has, and OmittedSize is their size in bytes.
	Omitted     int
	OmittedSize int64
	// Resumed is the number of bytes of the archive that an interrupted write had written.
	Resumed int64
	// Discarded is true if there was a partial file that has other content.
	Discarded bool
}

// PartialSuffix is the end of the name of a file that is being written.
const PartialSuffix = ".partial"

// compressed reports whether a file is written with compression.
func compressed(path string) (bool, error) {
	switch {
	case strings.HasSuffix(path, ".tar.zst"):
		return true, nil
	case strings.HasSuffix(path, ".tar"):
		return false, nil
	}
	return false, imagepin.Invalid("output file", path, errors.New("its name must end in .tar or .tar.zst"))
}

// Write writes a bundle. It writes to path and [PartialSuffix] and renames the file at the end. If that file exists, Write checks
// what is in it, and continues after it. Equal options give equal bytes. The memory that it needs does not depend on the size
// of layers. It fails with [imagepin.ContentCorrupt] (ErrFailedPrecondition), with [imagepin.NoMatchingPlatform] (ErrNotFound) if no image
// is for the platforms, and with the errors of the source and of the file system.
func Write(ctx context.Context, path string, o Options, source Source) (_ *Result, err error) {
	compress, err := compressed(path)
	if err != nil {
		return nil, err
	}
	if o.Progress == nil {
		o.Progress = func(ocispec.Descriptor, int64, bool) {}
	}
	p, err := newPlan(ctx, o, source)
	if err != nil {
		return nil, err
	}
	partial := path + PartialSuffix
	f, err := openPartial(partial)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, s := range p.segments {
		if s.blob != nil {
			o.Progress(s.blob.desc, 0, false)
		}
	}
	w := &writer{plan: p, file: f, compress: compress, source: source, progress: o.Progress}
	if err := w.resume(ctx, p.size); err != nil {
		return nil, err
	}
	if err := w.writeOrRepair(ctx); err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	p.result.FileSize = info.Size()
	if compress && p.size > limitOf(info.Size()) {
		return nil, imagepin.Invalid("output file", path, fmt.Errorf(
			"the layers compress to less than 1/%d, which readers refuse: write it without compression, to a name that ends in .tar", expansion))
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := os.Rename(partial, path); err != nil {
		return nil, err
	}
	return &p.result, syncDir(filepath.Dir(path))
}

// syncDir makes a rename in a directory durable.
func syncDir(dir string) (err error) {
	if runtime.GOOS == "windows" {
		return nil // it cannot
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	return d.Sync()
}

// writer writes the archive of a plan to a file.
type writer struct {
	plan     *plan
	file     *os.File
	compress bool
	source   Source
	progress func(ocispec.Descriptor, int64, bool)

	at       int64           // in the archive, where to continue
	verifier digest.Verifier // of the blob at this offset; nil if it is at its start
	sum      hash.Hash32     // of the file before this offset; nil without compression

	corrupt *corruption // set by write
}

// corruption is a large blob whose content does not match its digest.
type corruption struct {
	at      int64 // in the archive
	resumed bool  // its first bytes were in the partial file
}

// writeOrRepair is write. If a blob does not match its digest, it removes it from the file, and writes it again if a part of it
// was there before: that part may be wrong.
func (w *writer) writeOrRepair(ctx context.Context) error {
	err := w.write(ctx)
	if w.corrupt == nil {
		return err
	}
	bad := *w.corrupt
	w.corrupt = nil
	if resumeErr := w.resume(ctx, bad.at); resumeErr != nil {
		return errors.Join(err, resumeErr)
	}
	if !bad.resumed {
		return err
	}
	w.plan.result.Discarded = true
	return w.writeOrRepair(ctx)
}

// readaheadBuffers are the buffers of the reader of a large blob, each of readaheadSize bytes.
const (
	readaheadBuffers = 4
	readaheadSize    = 1 << 20
)

// write writes the archive from w.at to its end. Reading, hashing, compression and writing are concurrent.
func (w *writer) write(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	frames, err := newFramePipe(ctx, group, w.file, w.sum)
	if err != nil {
		return err
	}
	small := startPrefetch(ctx, group, w.source, w.plan.from(w.at), w.at)
	group.Go(func() error {
		defer frames.stop()
		if err := w.produce(ctx, frames, small); err != nil {
			return err
		}
		frames.flush()
		return nil
	})
	return group.Wait()
}

func (w *writer) produce(ctx context.Context, to io.Writer, small *prefetch) error {
	for _, s := range w.plan.from(w.at) {
		offset := max(w.at-s.at, 0)
		if s.blob == nil {
			if _, err := to.Write(s.data[offset:]); err != nil {
				return err
			}
			continue
		}
		if err := w.blob(ctx, to, s, offset, small); err != nil {
			return err
		}
	}
	return nil
}

// blob writes a blob from an offset.
func (w *writer) blob(ctx context.Context, to io.Writer, s segment, offset int64, small *prefetch) (err error) {
	desc := s.blob.desc
	if data, ok, err := small.take(ctx, s); err != nil {
		return err
	} else if ok {
		if _, err := to.Write(data); err != nil {
			return err
		}
		small.release(s)
		w.progress(desc, desc.Size, false)
		return nil
	}
	verifier, resumed := w.verifier, offset > 0
	if offset == 0 || verifier == nil {
		verifier = desc.Digest.Verifier()
	}
	body, err := w.source.Fetch(ctx, s.blob.repo, desc, offset)
	if err != nil {
		return err
	}
	r, err := readahead.NewReadCloserSize(body, readaheadBuffers, readaheadSize)
	if err != nil {
		return errors.Join(err, body.Close())
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	w.progress(desc, offset, false)
	for buffer := make([]byte, readaheadSize); ; {
		n, err := r.Read(buffer)
		if offset += int64(n); offset > desc.Size {
			return corrupt(s.blob)
		}
		_, _ = verifier.Write(buffer[:n]) // a hash accepts all writes
		if _, err := to.Write(buffer[:n]); err != nil {
			return err
		}
		w.progress(desc, offset, false)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%s@%s: %w", s.blob.repo.Name(), desc.Digest, err)
		}
	}
	if offset < desc.Size {
		return fmt.Errorf("%s@%s: the registry sent %d of %d bytes: %w", s.blob.repo.Name(), desc.Digest, offset, desc.Size, io.ErrUnexpectedEOF)
	}
	if !verifier.Verified() {
		w.corrupt = &corruption{s.at, resumed}
		return corrupt(s.blob)
	}
	return nil
}
