package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobs is a content store in memory, the backend of containerd's metadata store. The metadata store keeps the labels.
type blobs struct {
	mu      sync.Mutex
	data    map[digest.Digest]*blob
	ingests map[string]*ingest
}

type blob struct {
	bytes   []byte
	created time.Time
}

type ingest struct {
	buf      bytes.Buffer
	started  time.Time
	updated  time.Time
	total    int64
	expected digest.Digest
	busy     bool
}

func newBlobs() *blobs {
	return &blobs{data: make(map[digest.Digest]*blob), ingests: make(map[string]*ingest)}
}

func (b *blobs) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.info(d)
}

func (b *blobs) info(d digest.Digest) (content.Info, error) {
	x, ok := b.data[d]
	if !ok {
		return content.Info{}, fmt.Errorf("content %s: %w", d, errdefs.ErrNotFound)
	}
	return content.Info{Digest: d, Size: int64(len(x.bytes)), CreatedAt: x.created, UpdatedAt: x.created}, nil
}

func (b *blobs) Update(ctx context.Context, info content.Info, _ ...string) (content.Info, error) {
	return content.Info{}, fmt.Errorf("the metadata store keeps the labels: %w", errdefs.ErrFailedPrecondition)
}

func (b *blobs) Walk(_ context.Context, fn content.WalkFunc, fs ...string) error {
	filter, err := filters.ParseAll(fs...)
	if err != nil {
		return err
	}
	b.mu.Lock()
	var all []content.Info
	for _, d := range slices.Sorted(maps.Keys(b.data)) {
		info, _ := b.info(d)
		all = append(all, info)
	}
	b.mu.Unlock()
	for _, info := range all {
		if filter.Match(content.AdaptInfo(info)) {
			if err := fn(info); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *blobs) Delete(_ context.Context, d digest.Digest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.data, d)
	return nil
}

func (b *blobs) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	x, ok := b.data[desc.Digest]
	if !ok {
		return nil, fmt.Errorf("content %s: %w", desc.Digest, errdefs.ErrNotFound)
	}
	return reader{bytes.NewReader(x.bytes)}, nil
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

func (b *blobs) Status(_ context.Context, ref string) (content.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status(ref)
}

func (b *blobs) status(ref string) (content.Status, error) {
	i, ok := b.ingests[ref]
	if !ok {
		return content.Status{}, fmt.Errorf("ingest %s: %w", ref, errdefs.ErrNotFound)
	}
	return content.Status{
		Ref: ref, Offset: int64(i.buf.Len()), Total: i.total, Expected: i.expected, StartedAt: i.started, UpdatedAt: i.updated,
	}, nil
}

func (b *blobs) ListStatuses(context.Context, ...string) ([]content.Status, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []content.Status
	for _, ref := range slices.Sorted(maps.Keys(b.ingests)) {
		s, _ := b.status(ref)
		all = append(all, s)
	}
	return all, nil
}

func (b *blobs) Abort(_ context.Context, ref string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ingests, ref)
	return nil
}

func (b *blobs) Writer(_ context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.data[o.Desc.Digest]; ok {
		return nil, fmt.Errorf("content %s: %w", o.Desc.Digest, errdefs.ErrAlreadyExists)
	}
	i := b.ingests[o.Ref]
	if i == nil {
		i = &ingest{started: time.Now(), updated: time.Now(), total: o.Desc.Size, expected: o.Desc.Digest}
		b.ingests[o.Ref] = i
	}
	if i.busy {
		return nil, fmt.Errorf("ingest %s is locked: %w", o.Ref, errdefs.ErrUnavailable)
	}
	i.busy = true
	return &writer{store: b, ref: o.Ref, ingest: i}, nil
}

type writer struct {
	store  *blobs
	ref    string
	ingest *ingest       // nil after Close
	digest digest.Digest // set by Commit
}

func (w *writer) Write(p []byte) (int, error) {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.ingest == nil {
		return 0, io.ErrClosedPipe
	}
	w.ingest.updated = time.Now()
	return w.ingest.buf.Write(p)
}

func (w *writer) Close() error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.ingest != nil {
		w.ingest.busy = false
		w.ingest = nil
	}
	return nil
}

func (w *writer) Digest() digest.Digest {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.ingest == nil {
		return w.digest
	}
	return digest.FromBytes(w.ingest.buf.Bytes())
}

func (w *writer) Commit(_ context.Context, size int64, expected digest.Digest, _ ...content.Opt) error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.ingest == nil {
		return fmt.Errorf("the writer is closed: %w", errdefs.ErrFailedPrecondition)
	}
	data := bytes.Clone(w.ingest.buf.Bytes())
	w.ingest.busy = false
	defer func() { w.ingest = nil }()
	d := digest.FromBytes(data)
	w.digest = d
	if size > 0 && size != int64(len(data)) || expected != "" && expected != d {
		return fmt.Errorf("commit of %d bytes, %s: %d bytes, %s: %w", size, expected, len(data), d, errdefs.ErrFailedPrecondition)
	}
	delete(w.store.ingests, w.ref)
	if _, ok := w.store.data[d]; ok {
		return fmt.Errorf("content %s: %w", d, errdefs.ErrAlreadyExists)
	}
	w.store.data[d] = &blob{bytes: data, created: time.Now()}
	return nil
}

func (w *writer) Status() (content.Status, error) { return w.store.Status(context.Background(), w.ref) }

func (w *writer) Truncate(size int64) error {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	if w.ingest == nil || size != 0 {
		return fmt.Errorf("truncate to %d: %w", size, errdefs.ErrFailedPrecondition)
	}
	w.ingest.buf.Reset()
	return nil
}
