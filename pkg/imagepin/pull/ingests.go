package pull

import (
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
)

// ingests is a content store in which what a repository has sent of a blob is never the beginning of what another one
// sends. containerd continues an unfinished write by its name, which is only the blob's digest in core/remotes, so a
// registry that sends wrong bytes would fail the pulls from others.
//
// What is known to be wrong is deleted when its writer ends. The caller holds the lock of the blob until then.
type ingests struct {
	content.Store
	repository string
}

// ref returns the name of the repository's write.
func (s ingests) ref(ref string) string { return s.repository + "/" + ref }

// Writer implements content.Ingester.
func (s ingests) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	w, err := s.Store.Writer(ctx, s.named(o)...)
	if err != nil {
		return nil, err
	}
	return &ingest{Writer: w, ctx: ctx, store: s, opts: o}, nil
}

// named returns the options of a writer under the name of the repository's write.
func (s ingests) named(o content.WriterOpts) []content.WriterOpt {
	return []content.WriterOpt{content.WithRef(s.ref(o.Ref)), content.WithDescriptor(o.Desc)}
}

// Status implements content.Manager.
func (s ingests) Status(ctx context.Context, ref string) (content.Status, error) {
	status, err := s.Store.Status(ctx, s.ref(ref))
	status.Ref = ref
	return status, err
}

// ListStatuses implements content.Manager. It lists only the writes of the repository, without a filter.
func (s ingests) ListStatuses(ctx context.Context, _ ...string) ([]content.Status, error) {
	all, err := s.Store.ListStatuses(ctx)
	var own []content.Status
	for _, status := range all {
		if ref, ok := strings.CutPrefix(status.Ref, s.ref("")); ok {
			status.Ref = ref
			own = append(own, status)
		}
	}
	return own, err
}

// Abort implements content.IngestManager.
func (s ingests) Abort(ctx context.Context, ref string) error { return s.Store.Abort(ctx, s.ref(ref)) }

// ingest is a writer of a repository.
type ingest struct {
	content.Writer
	ctx       context.Context
	store     ingests
	opts      content.WriterOpts
	begun     bool // Status was called
	resumed   bool // an earlier write has begun the blob
	committed bool
	wrong     bool // what is written is not the blob
}

// Status implements content.Writer. An earlier write that has all bytes and was not committed does not count: remotes.Fetch
// would commit it without the registry.
func (w *ingest) Status() (content.Status, error) {
	status, err := w.Writer.Status()
	if err == nil && !w.begun {
		w.begun = true
		w.resumed = status.Offset > 0 && status.Expected == "" // not a blob that another containerd namespace has
		if size := w.opts.Desc.Size; w.resumed && size > 0 && status.Offset >= size {
			if err = w.restart(); err == nil {
				status, err = w.Writer.Status()
			}
		}
	}
	status.Ref = w.opts.Ref
	return status, err
}

// Commit implements content.Writer. If what is written is not the blob and an earlier write has begun it, Commit starts
// again with nothing, and fails with content.ErrReset: content.Copy then writes all of the blob.
func (w *ingest) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	err := w.Writer.Commit(ctx, size, expected, opts...)
	w.committed = err == nil || errdefs.IsAlreadyExists(err)
	if w.wrong = errdefs.IsFailedPrecondition(err); w.wrong && w.resumed && w.restart() == nil {
		return content.ErrReset
	}
	return err
}

// restart starts again with nothing.
func (w *ingest) restart() error {
	_ = w.Writer.Close()
	w.abort()
	again, err := content.OpenWriter(w.ctx, w.store.Store, w.store.named(w.opts)...)
	if err != nil {
		return err
	}
	w.Writer = again
	w.resumed, w.wrong = false, false
	return nil
}

// Close implements content.Writer. It deletes what is known to be wrong, and a write without a byte. The rest of an unfinished write
// is kept for the repository as long as the lease of its pull.
func (w *ingest) Close() error {
	if size := w.opts.Desc.Size; !w.committed && size > 0 {
		status, err := w.Writer.Status()
		w.wrong = w.wrong || err == nil && status.Expected == "" && (status.Offset > size || status.Offset == 0)
	}
	err := w.Writer.Close()
	if w.wrong {
		w.abort()
	}
	return err
}

// abort deletes what is written, also if the caller has gone.
func (w *ingest) abort() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), cleanupTimeout)
	defer cancel()
	if err := w.store.Abort(ctx, w.opts.Ref); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("digest", w.opts.Desc.Digest).Warn("cannot delete what a registry has sent of a blob")
	}
}
