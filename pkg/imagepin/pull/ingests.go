package pull

import (
	"context"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// ingests is a content store in which what a registry host has sent of a blob of a repository is never the beginning of what
// another host, or another repository, sends. containerd continues an unfinished write by its name, which is only the blob's
// digest in core/remotes, so a registry that sends wrong bytes would fail the pulls from others.
//
// What is known to be wrong is deleted when its writer ends. The caller holds the lock of the blob until then.
type ingests struct {
	content.Store
	repository string
	origin     origin // nil if the hosts are not known
}

// origin says where blobs come from. [resolve.Session] implements it.
type origin interface {
	// Hosts returns the registry hosts in the order in which they are asked.
	Hosts() []string
	// Source returns the host that the bytes of a blob come from which a fetch returns now. It may be empty.
	Source(d digest.Digest) string
}

// ingests returns the content store for what a source sends.
func (s *source) ingests(cs content.Store) ingests {
	all := ingests{Store: cs, repository: s.repository}
	if s.known != nil {
		all.origin = lazyOrigin{s}
	}
	return all
}

// lazyOrigin is the origin of a source. It opens no session.
type lazyOrigin struct{ *source }

func (o lazyOrigin) Hosts() []string               { return o.known().Hosts() }
func (o lazyOrigin) Source(d digest.Digest) string { return o.known().Source(d) }

// hosts returns the hosts of the repository, and an empty one if they are not known.
func (s ingests) hosts() []string {
	if s.origin != nil {
		if all := s.origin.Hosts(); len(all) > 0 {
			return all
		}
	}
	return []string{""}
}

// ref returns the name of the write of what a host sends. A repository has no "@" in its name.
func (s ingests) ref(host, ref string) string {
	if host != "" {
		host = "@" + host
	}
	return s.repository + host + "/" + ref
}

// begun returns the first host that has sent a part of a blob, or the first one.
func (s ingests) begun(ctx context.Context, ref string) (host string) {
	all := s.hosts()
	if len(all) == 1 {
		return all[0]
	}
	for _, host := range all {
		if status, err := s.Store.Status(ctx, s.ref(host, ref)); err == nil && status.Offset > 0 {
			return host
		}
	}
	return all[0]
}

// Writer implements content.Ingester.
func (s ingests) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	host := ""
	if here, err := blobs.Exists(ctx, s.Store, o.Desc.Digest); err != nil {
		return nil, err
	} else if !here { // otherwise the writer only adds the blob to the lease
		host = s.begun(ctx, o.Ref)
	}
	w, err := s.Store.Writer(ctx, s.named(host, o)...)
	if err != nil {
		return nil, err
	}
	return &ingest{Writer: w, ctx: ctx, store: s, opts: o, host: host}, nil
}

// named returns the options of a writer under the name of a host's write.
func (s ingests) named(host string, o content.WriterOpts) []content.WriterOpt {
	return []content.WriterOpt{content.WithRef(s.ref(host, o.Ref)), content.WithDescriptor(o.Desc)}
}

// Status implements content.Manager.
func (s ingests) Status(ctx context.Context, ref string) (content.Status, error) {
	status, err := s.Store.Status(ctx, s.ref(s.begun(ctx, ref), ref))
	status.Ref = ref
	return status, err
}

// ListStatuses implements content.Manager. It lists only the writes of the repository, without a filter.
func (s ingests) ListStatuses(ctx context.Context, _ ...string) ([]content.Status, error) {
	all, err := s.Store.ListStatuses(ctx)
	var own []content.Status
	for _, host := range s.hosts() {
		for _, status := range all {
			if ref, ok := strings.CutPrefix(status.Ref, s.ref(host, "")); ok {
				status.Ref = ref
				own = append(own, status)
			}
		}
	}
	return own, err
}

// Abort implements content.IngestManager.
func (s ingests) Abort(ctx context.Context, ref string) error {
	return s.Store.Abort(ctx, s.ref(s.begun(ctx, ref), ref))
}

// ingest is a writer of what a registry host sends of a blob.
type ingest struct {
	content.Writer
	ctx       context.Context
	store     ingests
	opts      content.WriterOpts
	host      string // whose write it is
	settled   bool   // bytes of the host were written
	begun     bool   // Status was called
	resumed   bool   // an earlier write has begun the blob
	mixed     bool   // bytes of another host were written
	committed bool
	wrong     bool // what is written is not the blob
}

// Status implements content.Writer. An earlier write that has all bytes and was not committed counts only if it is a layer with
// the right digest: remotes.Fetch commits it without the registry. The registry serves its manifest, as with a layer that is on the
// node.
func (w *ingest) Status() (content.Status, error) {
	status, err := w.Writer.Status()
	if err == nil && !w.begun {
		w.begun = true
		w.resumed = status.Offset > 0 && status.Expected == "" // not a blob that another containerd namespace has
		if size := w.opts.Desc.Size; w.resumed && size > 0 && status.Offset >= size && !w.complete() {
			if err = w.restart(); err == nil {
				status, err = w.Writer.Status()
			}
		}
	}
	status.Ref = w.opts.Ref
	return status, err
}

// complete reports whether an earlier write has all of a layer. Over a connection, containerd does not say the digest.
func (w *ingest) complete() bool {
	return images.IsLayerType(w.opts.Desc.MediaType) && w.Writer.Digest() == w.opts.Desc.Digest
}

// Write implements content.Writer. If the bytes come from another host than what is written, it continues what that host has sent
// before, and fails with content.ErrReset: content.Copy then goes on from there. If the host changes later, what is written is not
// kept for another pull.
func (w *ingest) Write(p []byte) (int, error) {
	if host := w.source(); host != "" && host != w.host {
		if w.settled {
			w.mixed = true
		} else if at, err := w.moveTo(host); err != nil {
			return 0, err
		} else if at {
			return 0, content.ErrReset
		}
	}
	w.settled = true
	return w.Writer.Write(p)
}

// source returns the host that the bytes come from, if it is known.
func (w *ingest) source() string {
	if w.store.origin == nil {
		return ""
	}
	return w.store.origin.Source(w.opts.Desc.Digest)
}

// moveTo continues the write of another host. elsewhere reports whether that is at another offset.
func (w *ingest) moveTo(host string) (elsewhere bool, _ error) {
	status, err := w.Writer.Status()
	if err != nil {
		return false, err
	}
	_ = w.Writer.Close()
	if status.Offset == 0 {
		w.abort()
	}
	if err := w.open(host); err != nil {
		return false, err
	}
	from := status.Offset
	if status, err = w.Writer.Status(); err != nil {
		return false, err
	}
	if w.resumed = status.Offset > 0 && status.Expected == ""; w.resumed && status.Offset >= w.opts.Desc.Size {
		if err := w.restart(); err != nil {
			return false, err
		}
		status.Offset = 0
	}
	return status.Offset != from, nil
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
	if err := w.open(w.host); err != nil {
		return err
	}
	w.resumed, w.wrong, w.settled, w.mixed = false, false, false, false
	return nil
}

// open opens the write of a host.
func (w *ingest) open(host string) error {
	again, err := content.OpenWriter(w.ctx, w.store.Store, w.store.named(host, w.opts)...)
	if err != nil {
		return err
	}
	w.Writer, w.host = again, host
	return nil
}

// Close implements content.Writer. It deletes what is known to be wrong, what two hosts have sent, and a write without a byte. The
// rest of an unfinished write is kept for the host and the repository.
func (w *ingest) Close() error {
	if size := w.opts.Desc.Size; !w.committed && size > 0 {
		status, err := w.Writer.Status()
		w.wrong = w.wrong || w.mixed || err == nil && status.Expected == "" && (status.Offset > size || status.Offset == 0)
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
	if err := w.store.Store.Abort(ctx, w.store.ref(w.host, w.opts.Ref)); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("digest", w.opts.Desc.Digest).Warn("cannot delete what a registry has sent of a blob")
	}
}
