package download

import (
	"context"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// download is a layer that is being downloaded to the content store.
type download struct {
	store  content.Store
	desc   ocispec.Descriptor
	window *window
	ended  chan struct{} // closed at the end
	err    error         // valid after ended

	mu      sync.Mutex
	labels  map[string]string // for the blob when it is committed
	written bool              // labels are written, or are being written
}

func newDownload(s *Store, desc ocispec.Descriptor) *download {
	return &download{
		store: s.Store, desc: desc, window: newWindow(&s.windows.memory, s.windows.wait), ended: make(chan struct{}), labels: make(map[string]string),
	}
}

// fetch downloads the layer to w, verifies and commits it, and closes w.
func (l *download) fetch(ctx context.Context, from remotes.Fetcher, w content.Writer) error {
	defer w.Close()
	rc, err := from.Fetch(ctx, l.desc)
	if err != nil {
		return err
	}
	defer rc.Close()
	if err := content.Copy(ctx, w, &tee{ReadCloser: rc, ctx: ctx, window: l.window}, l.desc.Size, l.desc.Digest, l.commitLabels); err != nil {
		return err
	}
	failpoint.Reach("download.committed")
	return l.addLabels(ctx)
}

// end ends the download with the error of fetch.
func (l *download) end(err error) {
	l.window.fail(err)
	l.window.dropUnread()
	l.err = err
	close(l.ended)
}

// commitLabels is the option of the commit that writes the labels.
func (l *download) commitLabels(info *content.Info) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.written = true
	info.Labels = maps.Clone(l.labels)
	return nil
}

// addLabels adds the labels to a blob that another client committed first. Then the commit does not write them.
func (l *download) addLabels(ctx context.Context) error {
	if len(l.labels) == 0 {
		return nil
	}
	info, err := l.store.Info(ctx, l.desc.Digest)
	if err != nil {
		return err
	}
	update, fields := content.Info{Digest: l.desc.Digest, Labels: make(map[string]string)}, []string(nil)
	for k, v := range l.labels {
		if strings.HasPrefix(k, labels.LabelDistributionSource) {
			v = withSource(k, info.Labels[k], v)
		}
		if info.Labels[k] != v {
			update.Labels[k], fields = v, append(fields, "labels."+k)
		}
	}
	if len(fields) == 0 {
		return nil
	}
	_, err = l.store.Update(ctx, update, fields...)
	return err
}

// withSource adds repositories to the value of a distribution source label, as docker.AppendDistributionSourceLabel does: if
// the label would be too long, the value does not change.
func withSource(label, value, repositories string) string {
	all := strings.Split(repositories, ",")
	if value != "" {
		all = append(all, strings.Split(value, ",")...)
	}
	slices.Sort(all)
	added := strings.Join(slices.Compact(all), ",")
	if labels.Validate(label, added) != nil {
		return value
	}
	return added
}

// label adds labels to those that are written when the layer is committed. It fails if they are being written.
func (l *download) label(added map[string]string) (content.Info, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written || l.hasEnded() {
		return content.Info{}, false
	}
	maps.Copy(l.labels, added)
	return l.info(), true
}

// pending returns the record of the blob as it will be committed, until it is being committed.
func (l *download) pending() (content.Info, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.info(), !l.written && !l.hasEnded()
}

func (l *download) info() content.Info {
	return content.Info{Digest: l.desc.Digest, Size: l.desc.Size, Labels: maps.Clone(l.labels)}
}

// wait waits for the end of the download. It returns its error, or the context's error.
func (l *download) wait(ctx context.Context) error {
	select {
	case <-l.ended:
	case <-ctx.Done():
		if !l.hasEnded() { // it may have failed, which ends the context
			return ctx.Err()
		}
	}
	return l.err
}

func (l *download) hasEnded() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// tee is the body of a download that copies what is read to its window.
type tee struct {
	io.ReadCloser
	ctx    context.Context
	window *window
}

func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.window.write(t.ctx, p[:n])
	return n, err
}

// Seek implements io.Seeker, for a content store that asks to begin again.
func (t *tee) Seek(offset int64, whence int) (int64, error) {
	s, ok := t.ReadCloser.(io.Seeker)
	if !ok {
		return 0, errdefs.ErrNotImplemented
	}
	t.window.drop()
	return s.Seek(offset, whence)
}
