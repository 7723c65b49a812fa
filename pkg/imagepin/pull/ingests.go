package pull

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
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
// What is known to be wrong is deleted when its writer ends. The caller holds the mutex of the blob until then.
type ingests struct {
	content.Store
	repository string
	origin     origin // nil if the hosts are not known
	// labels are set on each blob that is written.
	labels map[string]string
	// leased are the blobs that the lease of a caller has already. nil keeps none.
	leased *leased
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
	all := ingests{Store: cs, repository: s.repository, labels: s.labels, leased: &s.leased}
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
		if s.find(ctx, host, ref).offset > 0 {
			return host
		}
	}
	return all[0]
}

// write is a write of a blob, by its name.
type write struct {
	name   string
	offset int64
}

// find returns the write of what a host has sent of a blob. It has one of two names: see [ingests.copied].
func (s ingests) find(ctx context.Context, host, ref string) write {
	found := write{name: s.ref(host, ref)}
	for _, name := range []string{found.name, otherName(found.name)} {
		if status, err := s.Store.Status(ctx, name); err == nil && status.Offset > found.offset {
			found = write{name, status.Offset}
		}
	}
	return found
}

// copySuffix distinguishes the two names of a write.
const copySuffix = "+copy"

// otherName returns the other name of a write.
func otherName(name string) string {
	if first, ok := strings.CutSuffix(name, copySuffix); ok {
		return first
	}
	return name + copySuffix
}

const (
	// maxReopened is the maximum size in bytes of a write that containerd opens again. It hashes what is written in a transaction of its
	// metadata database, in which nothing else is written: a gigabyte takes seconds.
	maxReopened = 16 << 20
	// maxReopenedBlind is that size if the files of the content store cannot be read.
	maxReopenedBlind = 1 << 30
)

// open opens the write of what a host sends of a blob, and continues it.
func (s ingests) open(ctx context.Context, host string, o content.WriterOpts) (content.Writer, string, error) {
	found := s.find(ctx, host, o.Ref)
	if found.offset > maxReopened {
		w, err := s.copied(ctx, found, o)
		if !errors.Is(err, fs.ErrNotExist) {
			return w, otherName(found.name), err
		}
		if found.offset > maxReopenedBlind {
			log.G(ctx).WithField("digest", o.Desc.Digest).Warn("the beginning of a blob is too large to be continued, fetching all of it")
			if err := s.Store.Abort(ctx, found.name); err != nil && !errdefs.IsNotFound(err) {
				return nil, "", err
			}
		}
	}
	w, err := s.Store.Writer(ctx, content.WithRef(found.name), content.WithDescriptor(o.Desc))
	return w, found.name, err
}

// copied continues a write under its other name: it copies what is written, which hashes it outside of any transaction, and then
// deletes the first write. It fails with fs.ErrNotExist if the file of the write cannot be read.
func (s ingests) copied(ctx context.Context, from write, o content.WriterOpts) (_ content.Writer, err error) {
	opener, ok := s.Store.(blobs.Opener)
	if !ok {
		return nil, fs.ErrNotExist
	}
	file, err := opener.OpenWrite(ctx, from.name)
	if err != nil {
		return nil, fs.ErrNotExist
	}
	defer file.Close()
	to := otherName(from.name)
	if err := s.Store.Abort(ctx, to); err != nil && !errdefs.IsNotFound(err) { // of a copy that was interrupted
		return nil, err
	}
	w, err := s.Store.Writer(ctx, content.WithRef(to), content.WithDescriptor(o.Desc))
	if err != nil {
		return nil, err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{w}, untilDone{ctx, io.LimitReader(file, from.offset)}, make([]byte, 1<<20)); err != nil {
		_ = w.Close()
		if aerr := s.Store.Abort(context.WithoutCancel(ctx), to); aerr != nil {
			log.G(ctx).WithError(aerr).WithField("digest", o.Desc.Digest).Warn("cannot delete the copy of what has arrived of a blob")
		}
		return nil, fmt.Errorf("copy what has arrived of %s: %w", o.Desc.Digest, err)
	}
	log.G(ctx).WithField("digest", o.Desc.Digest).WithField("offset", from.offset).Info("continuing a blob that has arrived in part")
	if err := s.Store.Abort(ctx, from.name); err != nil && !errdefs.IsNotFound(err) {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

// untilDone is a reader that fails when its context ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

func (r untilDone) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// Writer implements content.Ingester.
func (s ingests) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if o.Desc.Digest.Validate() != nil {
		s.origin = nil // the fetch fails
	} else if here, err := blobs.Exists(ctx, s.Store, o.Desc.Digest); err != nil {
		return nil, err
	} else if here {
		if s.leased.has(ctx, o.Desc.Digest) {
			return nil, fmt.Errorf("content %s: %w", o.Desc.Digest, errdefs.ErrAlreadyExists)
		}
		s.origin = nil // the writer only adds the blob to the lease
	}
	w := &ingest{ctx: ctx, store: s, opts: o, host: s.begun(ctx, o.Ref)}
	var err error
	if w.Writer, w.name, err = s.open(ctx, w.host, o); err != nil {
		if errdefs.IsAlreadyExists(err) {
			s.leased.add(ctx, o.Desc.Digest)
		}
		return nil, err
	}
	return w, nil
}

// Status implements content.Manager.
func (s ingests) Status(ctx context.Context, ref string) (content.Status, error) {
	status, err := s.Store.Status(ctx, s.find(ctx, s.begun(ctx, ref), ref).name)
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
				status.Ref = strings.TrimSuffix(ref, copySuffix)
				own = append(own, status)
			}
		}
	}
	return own, err
}

// Abort implements content.IngestManager.
func (s ingests) Abort(ctx context.Context, ref string) error {
	return s.Store.Abort(ctx, s.find(ctx, s.begun(ctx, ref), ref).name)
}

// ingest is a writer of what a registry host sends of a blob.
type ingest struct {
	content.Writer
	ctx       context.Context
	store     ingests
	opts      content.WriterOpts
	host      string   // whose write it is
	left      []string // the hosts whose writes it was before
	name      string   // of the write
	settled   bool     // bytes of the host were written
	begun     bool     // Status was called
	resumed   bool     // an earlier write has begun the blob
	mixed     bool     // bytes of another host were written
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
// before, and fails with content.ErrReset: content.Copy then goes on from there. It does not go back to a host: each request can be
// answered by another one. If the host changes later, what is written is not kept for another pull.
func (w *ingest) Write(p []byte) (int, error) {
	if host := w.source(); host != "" && host != w.host {
		if w.settled || slices.Contains(w.left, host) {
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
	w.left = append(w.left, w.host)
	if status.Offset == 0 {
		w.abort(w.name)
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
	err := w.Writer.Commit(ctx, size, expected, append(opts[:len(opts):len(opts)], withLabels(w.store.labels))...)
	if w.committed = err == nil || errdefs.IsAlreadyExists(err); w.committed {
		w.store.leased.add(ctx, w.opts.Desc.Digest)
	}
	if w.wrong = errdefs.IsFailedPrecondition(err); w.wrong && w.resumed && w.restart() == nil {
		return content.ErrReset
	}
	if w.wrong {
		for _, host := range w.left { // the next fetch would begin with what they have sent, and be reset again
			w.abort(w.store.find(ctx, host, w.opts.Ref).name)
		}
	}
	return err
}

// restart starts again with nothing.
func (w *ingest) restart() error {
	_ = w.Writer.Close()
	w.abort(w.name)
	if err := w.open(w.host); err != nil {
		return err
	}
	w.resumed, w.wrong, w.settled, w.mixed = false, false, false, false
	return nil
}

// open opens the write of a host.
func (w *ingest) open(host string) error {
	again, err := content.OpenWriter(w.ctx, opening(func(ctx context.Context) (again content.Writer, err error) {
		again, w.name, err = w.store.open(ctx, host, w.opts)
		return again, err
	}))
	if err != nil {
		return err
	}
	w.Writer, w.host = again, host
	return nil
}

// opening is a content.Ingester for content.OpenWriter, which waits while another writer of the same name is open.
type opening func(context.Context) (content.Writer, error)

func (o opening) Writer(ctx context.Context, _ ...content.WriterOpt) (content.Writer, error) {
	return o(ctx)
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
		w.abort(w.name)
	}
	return err
}

// abort deletes a write, also if the caller has gone.
func (w *ingest) abort(name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), cleanupTimeout)
	defer cancel()
	if err := w.store.Store.Abort(ctx, name); err != nil && !errdefs.IsNotFound(err) {
		log.G(ctx).WithError(err).WithField("digest", w.opts.Desc.Digest).Warn("cannot delete what a registry has sent of a blob")
	}
}
