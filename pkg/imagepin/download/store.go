package download

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// Locks is the duplication suppressor of the transfer service.
type Locks interface {
	// ShareBlob adds a holder to the lock of a blob that the caller holds. The lock is free after both have released it.
	ShareBlob(blob digest.Digest) (release func())
}

// Store is the content store of a transfer service whose layers are unpacked while they are downloaded.
type Store struct {
	content.Store
	locks   Locks
	windows *Windows
}

// NewStore returns a Store that writes to cs.
func NewStore(cs content.Store, locks Locks, windows *Windows) *Store {
	return &Store{Store: cs, locks: locks, windows: windows}
}

// Windows is the memory that all stores of a node use together.
type Windows struct {
	wait   time.Duration
	memory memory
}

// NewWindows returns Windows. A pull that receives nothing for progressTimeout has failed; 0 is without such a limit.
func NewWindows(progressTimeout time.Duration) *Windows {
	wait := maxWait
	if progressTimeout > 0 {
		wait = min(wait, progressTimeout/4)
	}
	return &Windows{wait: wait}
}

// Writer implements content.Ingester. For a layer that is downloaded from its beginning, it returns a writer whose
// Commit starts the download and returns. remotes.Fetch commits without a download if the Status of a writer has all
// bytes (see package upstream).
func (s *Store) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if isEmptyLayer(o.Desc) {
		return nil, s.writeEmpty(ctx, opts...)
	}
	downloads := downloadsOf(ctx)
	if downloads == nil || !images.IsLayerType(o.Desc.MediaType) || o.Desc.Size <= int64(len(o.Desc.Data)) {
		return s.Store.Writer(ctx, opts...)
	}
	ctx = downloads.detach(ctx) // the writer of a proxied content store ends with its context
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	status, err := w.Status()
	if err != nil || status.Offset > 0 { // it is resumed, or another namespace has it
		return w, nil
	}
	return &handover{Writer: w, ctx: ctx, store: s, downloads: downloads, desc: o.Desc}, nil
}

// isEmptyLayer reports whether a layer has no bytes. containerd does not fetch such a layer, because a registry that sends no
// size looks like that. Here its digest is that of no bytes.
func isEmptyLayer(desc ocispec.Descriptor) bool {
	return desc.Size == 0 && images.IsLayerType(desc.MediaType) && desc.Digest.Validate() == nil && desc.Digest == desc.Digest.Algorithm().FromBytes(nil)
}

// writeEmpty writes a layer without bytes, for which nothing has to be fetched. If it succeeds, it fails with
// ErrAlreadyExists.
func (s *Store) writeEmpty(ctx context.Context, opts ...content.WriterOpt) error {
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Commit(ctx, 0, ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return fmt.Errorf("a layer without bytes: %w", errdefs.ErrAlreadyExists)
}

// Info implements content.InfoProvider, also for a layer that the context's pull is downloading.
func (s *Store) Info(ctx context.Context, blob digest.Digest) (content.Info, error) {
	if l := downloadsOf(ctx).of(blob); l != nil {
		if info, ok := l.pending(); ok {
			return info, nil
		}
		<-l.ended // soon, because the layer is being committed
	}
	return s.Store.Info(ctx, blob)
}

// Update implements content.Manager. The labels of a layer that the context's pull is downloading are written with the
// layer.
func (s *Store) Update(ctx context.Context, info content.Info, fields ...string) (content.Info, error) {
	if l := downloadsOf(ctx).of(info.Digest); l != nil {
		if labels, ok := labelsOf(info, fields); ok {
			if info, ok := l.label(labels); ok {
				return info, nil
			}
		}
		<-l.ended
	}
	return s.Store.Update(ctx, info, fields...)
}

// labelsOf returns the labels that an update sets, if it changes nothing else.
func labelsOf(info content.Info, fields []string) (map[string]string, bool) {
	if len(fields) == 0 || slices.ContainsFunc(fields, func(f string) bool { return !strings.HasPrefix(f, "labels.") }) {
		return nil, false
	}
	labels := maps.Clone(info.Labels)
	maps.DeleteFunc(labels, func(k, v string) bool { return v == "" || !slices.Contains(fields, "labels."+k) })
	return labels, len(labels) == len(fields)
}

// handover is a writer that hands its layer over to a download.
type handover struct {
	content.Writer
	ctx       context.Context // detached
	store     *Store
	downloads *Downloads
	desc      ocispec.Descriptor
	done      bool // the download closes the writer
}

// Status implements content.Writer. It has all bytes.
func (h *handover) Status() (content.Status, error) {
	status, err := h.Writer.Status()
	status.Offset = h.desc.Size
	return status, err
}

// Commit implements content.Writer. It starts the download. The caller holds the mutex of the blob.
func (h *handover) Commit(_ context.Context, _ int64, _ digest.Digest, _ ...content.Opt) error {
	release := h.store.locks.ShareBlob(h.desc.Digest)
	failpoint.Reach("download.begin")
	if err := h.downloads.begin(h.ctx, h.store, h.Writer, h.desc, release); err != nil {
		release()
		return err
	}
	h.done = true
	return nil
}

// Close implements content.Writer.
func (h *handover) Close() error {
	if h.done {
		return nil
	}
	return h.Writer.Close()
}
