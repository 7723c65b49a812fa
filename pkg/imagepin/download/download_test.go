package download

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// node is a node that pulls one layer from a registry, as containerd's transfer service does.
type node struct {
	*ctdtest.Node
	store   *Store
	locks   *locks
	applier *Applier
	layer   testLayer
	body    *body
	ctx     context.Context
	pull    *Downloads
	upper   string // where the layer is unpacked
}

// locks are the locks of blobs.
type locks struct{ keyed.Mutex }

func (l *locks) ShareBlob(d digest.Digest) func() {
	l.Share(d.String())
	return func() { l.Unlock(d.String()) }
}

func newNode(t *testing.T, layer testLayer) *node {
	t.Helper()
	n := &node{Node: ctdtest.New(t), locks: &locks{}, layer: layer, body: newBody(layer.blob), upper: t.TempDir()}
	n.store = NewStore(n.Content, n.locks, NewWindows(0))
	n.applier = NewApplier(n.Content, apply.NewFileSystemApplier)
	n.ctx, n.pull = With(n.Context(t), remotes.FetcherFunc(func(ctx context.Context, _ ocispec.Descriptor) (io.ReadCloser, error) {
		n.body.ctx = ctx
		return n.body, nil
	}))
	t.Cleanup(func() { _ = n.pull.End(errors.New("the test has ended")) })
	return n
}

// fetch runs the handlers of the transfer service for the layer.
func (n *node) fetch() error {
	source, err := docker.AppendDistributionSourceLabel(n.store, "registry.example/app:v1")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(n.ctx) // the context of the handlers ends before the download
	defer cancel()
	key := n.layer.desc.Digest.String()
	if err := n.locks.Lock(ctx, key); err != nil {
		return err
	}
	defer n.locks.Unlock(key)
	_, err = images.Handlers(remotes.FetchHandler(n.store, n.pull.fetcher), source).Handle(ctx, n.layer.desc)
	return err
}

func (n *node) apply(opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	return n.applier.Apply(n.ctx, n.layer.desc, upperOf(n.upper), opts...)
}

func upperOf(dir string) []mount.Mount {
	return []mount.Mount{{Type: "overlay", Options: []string{"upperdir=" + dir}}}
}

// body is a response of a registry that stops at a gate.
type body struct {
	io.Reader
	ctx    context.Context
	closed chan struct{}
	once   sync.Once
}

func newBody(blob []byte) *body {
	return &body{Reader: bytes.NewReader(blob), closed: make(chan struct{})}
}

func (b *body) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// gated is a reader that waits for open after n bytes.
type gated struct {
	io.Reader
	ctx  func() context.Context
	n    int
	open chan struct{}
	err  error // after the gate; nil for the rest
}

func (g *gated) Read(p []byte) (int, error) {
	if g.n == 0 {
		select {
		case <-g.open:
		case <-g.ctx().Done():
			return 0, g.ctx().Err()
		}
		if g.err != nil {
			return 0, g.err
		}
		return g.Reader.Read(p)
	}
	n, err := g.Reader.Read(p[:min(len(p), g.n)])
	g.n -= n
	return n, err
}

// gate stops the body of the registry after a number of bytes, until open is called.
func (n *node) gate(after int, err error) (open func()) {
	g := &gated{Reader: n.body.Reader, ctx: func() context.Context { return n.body.ctx }, n: after, open: make(chan struct{}), err: err}
	n.body.Reader = g
	return sync.OnceFunc(func() { close(g.open) })
}

// testLayer is a layer, and the tar archive in it.
type testLayer struct {
	desc ocispec.Descriptor
	blob []byte
	tar  []byte
}

func (l testLayer) diffID() digest.Digest { return digest.FromBytes(l.tar) }

// gzipLayer returns a layer with files of random bytes, and with whiteouts and links.
func gzipLayer(t *testing.T, files, size int) testLayer {
	t.Helper()
	archive := archiveOf(t, files, size)
	return layerOf(ocispec.MediaTypeImageLayerGzip, zipped(t, archive), archive)
}

func zipped(t *testing.T, archive []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	noError(t, err)
	_, err = w.Write(archive)
	noError(t, err)
	noError(t, w.Close())
	return buf.Bytes()
}

func layerOf(mediaType string, blob, archive []byte) testLayer {
	return testLayer{ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}, blob, archive}
}

func archiveOf(t *testing.T, files, size int) []byte {
	t.Helper()
	random := rand.NewChaCha8([32]byte{byte(files)})
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := range files {
		noError(t, w.WriteHeader(&tar.Header{Name: fmt.Sprintf("dir/file%d", i), Mode: 0o640, Size: int64(size), ModTime: time.Unix(int64(i), 0)}))
		_, err := io.CopyN(w, random, int64(size))
		noError(t, err)
	}
	noError(t, w.WriteHeader(&tar.Header{Name: "link", Linkname: "dir/file0", Typeflag: tar.TypeSymlink}))
	noError(t, w.WriteHeader(&tar.Header{Name: "dir/hard", Linkname: "dir/file0", Typeflag: tar.TypeLink}))
	noError(t, w.WriteHeader(&tar.Header{Name: "dir/.wh.gone", Mode: 0o600}))
	noError(t, w.Close())
	return append(buf.Bytes(), "trailing data"...)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// waitFor waits for a condition that another goroutine causes.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// checkStored checks that the content store has the layer, with its labels, and that its lock is free.
func (n *node) checkStored(t *testing.T) {
	t.Helper()
	ctx := n.Context(t)
	info, err := n.Content.Info(ctx, n.layer.desc.Digest)
	noError(t, err)
	if info.Labels["containerd.io/distribution.source.registry.example"] != "app" {
		t.Errorf("the layer has the labels %v", info.Labels)
	}
	blob, err := content.ReadBlob(ctx, n.Content, n.layer.desc)
	noError(t, err)
	if !bytes.Equal(blob, n.layer.blob) {
		t.Error("the stored layer differs")
	}
	n.checkFree(t)
}

// checkFree checks that the lock of the layer is free, and that no memory is in use.
func (n *node) checkFree(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	key := n.layer.desc.Digest.String()
	noError(t, n.locks.Lock(ctx, key))
	n.locks.Unlock(key)
	if n.store.windows.memory.used != 0 {
		t.Errorf("%d chunks are in use at the end", n.store.windows.memory.used)
	}
}

// TestUnpackWhileDownloading checks that a layer is unpacked before all of it is downloaded, and that Apply returns only
// after the content store has it.
func TestUnpackWhileDownloading(t *testing.T) {
	n := newNode(t, gzipLayer(t, 10, 1<<20))
	open := n.gate(len(n.layer.blob)/2, nil)
	noError(t, n.fetch())
	type result struct {
		desc ocispec.Descriptor
		err  error
	}
	done := make(chan result, 1)
	go func() {
		desc, err := n.apply()
		done <- result{desc, err}
	}()
	waitFor(t, "a file is unpacked", func() bool { _, err := os.Lstat(filepath.Join(n.upper, "dir/file1")); return err == nil })
	if _, err := n.Content.Info(n.Context(t), n.layer.desc.Digest); !errdefs.IsNotFound(err) {
		t.Errorf("the content store has half a layer: %v", err)
	}
	select {
	case r := <-done:
		t.Fatalf("Apply returned before the download: %v", r.err)
	default:
	}
	open()
	r := <-done
	noError(t, r.err)
	if r.desc.Digest != n.layer.diffID() || r.desc.Size != int64(len(n.layer.tar)) || r.desc.MediaType != ocispec.MediaTypeImageLayer {
		t.Errorf("unpacked %+v, want %s", r.desc, n.layer.diffID())
	}
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestSameAsWalkingDiffer compares what Apply unpacks with what containerd's applier unpacks, for each compression, from
// a download and from the content store.
func TestSameAsWalkingDiffer(t *testing.T) {
	archive := archiveOf(t, 20, 100_000)
	var z bytes.Buffer
	w, err := zstd.NewWriter(&z)
	noError(t, err)
	_, err = w.Write(archive)
	noError(t, err)
	noError(t, w.Close())
	for name, layer := range map[string]testLayer{
		"gzip":                      gzipLayer(t, 20, 100_000),
		"zstd":                      layerOf(ocispec.MediaTypeImageLayerZstd, z.Bytes(), archive),
		"none":                      layerOf(ocispec.MediaTypeImageLayer, archive, archive),
		"gzip with docker type":     withType(images.MediaTypeDockerSchema2LayerGzip, gzipLayer(t, 3, 10)),
		"gzip with unspecific type": withType(images.MediaTypeDockerSchema2Layer, gzipLayer(t, 3, 10)),
		"gzip with type of zstd":    withType(ocispec.MediaTypeImageLayerZstd, gzipLayer(t, 3, 10)),
		"zstd with type of gzip":    layerOf(ocispec.MediaTypeImageLayerGzip, z.Bytes(), archive),
		"none with type of gzip":    layerOf(ocispec.MediaTypeImageLayerGzip, archive, archive),
		"gzip of two members":       layerOf(ocispec.MediaTypeImageLayerGzip, append(zipped(t, archive[:1000]), zipped(t, archive[1000:])...), archive),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, layer)
			noError(t, n.fetch())
			downloaded, err := n.apply()
			noError(t, err)
			noError(t, n.pull.End(nil))
			n.checkStored(t)
			ctx, want, stored := n.Context(t), t.TempDir(), t.TempDir()
			theirs, err := apply.NewFileSystemApplier(n.Content).Apply(ctx, layer.desc, upperOf(want))
			noError(t, err)
			fromStore, err := n.applier.Apply(ctx, layer.desc, upperOf(stored))
			noError(t, err)
			if downloaded.Digest != theirs.Digest || downloaded.Size != theirs.Size || fromStore.Digest != theirs.Digest {
				t.Errorf("unpacked %+v and %+v, containerd %+v", downloaded, fromStore, theirs)
			}
			if files := tree(t, want); len(files) < 4 || !equal(files, tree(t, n.upper)) || !equal(files, tree(t, stored)) {
				t.Errorf("unpacked %v and %v, containerd %v", tree(t, n.upper), tree(t, stored), files)
			}
		})
	}
}

func withType(mediaType string, l testLayer) testLayer {
	l.desc.MediaType = mediaType
	return l
}

func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	noError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		sum := ""
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = digest.FromBytes(b).String() + info.ModTime().String()
		}
		rel, err := filepath.Rel(dir, path)
		files[rel] = info.Mode().String() + sum
		return err
	}))
	delete(files, ".")
	return files
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// TestLateApplier checks that a download does not wait for an applier that has not come, and that the layer is then
// unpacked from the content store.
func TestLateApplier(t *testing.T) {
	n := newNode(t, gzipLayer(t, 1, windowChunks*chunkSize+1000))
	noError(t, n.fetch())
	noError(t, n.pull.of(n.layer.desc.Digest).wait(t.Context()))
	applied, err := n.apply()
	noError(t, err)
	if applied.Digest != n.layer.diffID() {
		t.Errorf("unpacked %s, want %s", applied.Digest, n.layer.diffID())
	}
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestDroppedWindow checks that a layer whose window is dropped while it is unpacked is read on from the content store.
func TestDroppedWindow(t *testing.T) {
	n := newNode(t, gzipLayer(t, 4, 1<<20))
	open := n.gate(len(n.layer.blob)/2, nil)
	noError(t, n.fetch())
	done := make(chan error, 1)
	go func() {
		applied, err := n.apply()
		if err == nil && applied.Digest != n.layer.diffID() {
			err = fmt.Errorf("unpacked %s, want %s", applied.Digest, n.layer.diffID())
		}
		done <- err
	}()
	waitFor(t, "a file is unpacked", func() bool { _, err := os.Lstat(filepath.Join(n.upper, "dir/file0")); return err == nil })
	n.pull.of(n.layer.desc.Digest).window.drop()
	open()
	noError(t, <-done)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestCorruptLayer checks that a layer with another digest is not unpacked, and that its error is the one of the content
// store.
func TestCorruptLayer(t *testing.T) {
	for name, corrupt := range map[string]func([]byte) []byte{
		"other layer":      func(b []byte) []byte { return other(t, b) },
		"no archive":       func(b []byte) []byte { return bytes.Repeat([]byte("x"), len(b)) },
		"too short":        func(b []byte) []byte { return b[:len(b)/2] },
		"too long":         func(b []byte) []byte { return append(bytes.Clone(b), 'x') },
		"damaged in parts": func(b []byte) []byte { b = bytes.Clone(b); b[len(b)/2]++; return b },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, gzipLayer(t, 3, 100_000))
			n.body.Reader = bytes.NewReader(corrupt(n.layer.blob))
			// The download may have failed before the handlers label the layer. The error of the pull is the download's.
			if err := n.fetch(); err != nil && !errdefs.IsNotFound(err) {
				t.Fatal(err)
			}
			_, err := n.apply()
			if err == nil {
				t.Fatal("a corrupt layer was unpacked")
			}
			if !errdefs.IsFailedPrecondition(err) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the error is %v", err)
			}
			if ended := n.pull.End(fmt.Errorf("failed to extract layer: %w", err)); !errors.Is(ended, n.pull.err) || n.pull.err == nil {
				t.Errorf("the pull failed with %v", ended)
			}
			if _, err := n.Content.Info(n.Context(t), n.layer.desc.Digest); !errdefs.IsNotFound(err) {
				t.Errorf("the content store has the corrupt layer: %v", err)
			}
			n.checkFree(t)
		})
	}
}

// other returns a valid layer of the same size.
func other(t *testing.T, blob []byte) []byte {
	t.Helper()
	b := bytes.Clone(blob)
	b[4]++ // the time in the header of gzip
	return b
}

// TestBrokenDownload checks that the error of the registry ends the pull.
func TestBrokenDownload(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	fail := n.gate(1000, errBroken)
	noError(t, n.fetch()) // labels the layer, which a failed download has not stored
	fail()
	if _, err := n.apply(); !errors.Is(err, errBroken) {
		t.Errorf("Apply failed with %v", err)
	}
	if err := n.pull.End(context.Canceled); !errors.Is(err, errBroken) {
		t.Errorf("the pull failed with %v", err)
	}
	n.checkFree(t)
}

// TestEnd checks that the downloads of a failed pull end with it, and that none begins later.
func TestEnd(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	n.gate(1000, nil)
	noError(t, n.fetch())
	failure := errors.New("another layer cannot be unpacked")
	if err := n.pull.End(failure); !errors.Is(err, failure) {
		t.Errorf("the pull failed with %v", err)
	}
	select {
	case <-n.body.closed:
	default:
		t.Error("the connection is open after the end")
	}
	n.checkFree(t)
	if err := n.fetch(); !errors.Is(err, context.Canceled) {
		t.Errorf("a fetch after the end: %v", err)
	}
	n.checkFree(t)
}

// TestDownloadsWithoutApplier checks that a pull waits for the downloads of layers that are not unpacked.
func TestDownloadsWithoutApplier(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	time.AfterFunc(10*time.Millisecond, open)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestOneDownloadOfABlob checks that a second fetch of a blob waits for the first one, and finds the blob.
func TestOneDownloadOfABlob(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	second := *n
	second.ctx, second.pull = With(n.Context(t), remotes.FetcherFunc(func(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
		return nil, errors.New("the second pull fetched the layer")
	}))
	done := make(chan error, 1)
	go func() { done <- second.fetch() }()
	select {
	case err := <-done:
		t.Fatalf("the second fetch did not wait: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	open()
	noError(t, <-done)
	second.upper = t.TempDir()
	_, err := second.apply()
	noError(t, err)
	noError(t, second.pull.End(nil))
	_, err = n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestResumedDownload checks that a download that another pull began is resumed before it is unpacked.
func TestResumedDownload(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	ctx := n.Context(t)
	w, err := n.Content.Writer(ctx, content.WithRef(remotes.MakeRefKey(ctx, n.layer.desc)), content.WithDescriptor(n.layer.desc))
	noError(t, err)
	_, err = w.Write(n.layer.blob[:1000])
	noError(t, err)
	noError(t, w.Close())
	noError(t, n.fetch())
	if n.pull.of(n.layer.desc.Digest) != nil {
		t.Error("the download is not resumed")
	}
	_, err = n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestLabelsOfAnExistingBlob checks that the labels are also written if another client commits the blob first.
func TestLabelsOfAnExistingBlob(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	ctx := n.Context(t)
	noError(t, content.WriteBlob(ctx, n.Content, "another client", bytes.NewReader(n.layer.blob), n.layer.desc))
	open()
	_, err := n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestSourceOfAnotherClient checks that the distribution source of a blob that another client commits first is kept.
func TestSourceOfAnotherClient(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	ctx := n.Context(t)
	const label = "containerd.io/distribution.source.registry.example"
	noError(t, content.WriteBlob(ctx, n.Content, "another client", bytes.NewReader(n.layer.blob), n.layer.desc,
		content.WithLabels(map[string]string{label: "other"})))
	open()
	_, err := n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	info, err := n.Content.Info(ctx, n.layer.desc.Digest)
	noError(t, err)
	if info.Labels[label] != "app,other" {
		t.Errorf("the distribution source is %q, want app,other", info.Labels[label])
	}
}

// TestLongSource checks that a pull does not fail, and the distribution source stays, if another repository does not fit in.
func TestLongSource(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	open := n.gate(1000, nil)
	noError(t, n.fetch())
	ctx := n.Context(t)
	const label = "containerd.io/distribution.source.registry.example"
	full := strings.Repeat("r", 4096-len(label))
	noError(t, content.WriteBlob(ctx, n.Content, "another client", bytes.NewReader(n.layer.blob), n.layer.desc,
		content.WithLabels(map[string]string{label: full})))
	open()
	_, err := n.apply()
	noError(t, err)
	noError(t, n.pull.End(nil))
	info, err := n.Content.Info(ctx, n.layer.desc.Digest)
	noError(t, err)
	if info.Labels[label] != full {
		t.Errorf("the distribution source has %d bytes, want %d", len(info.Labels[label]), len(full))
	}
}

// TestLabelsAfterTheCommit checks that an update which is not written with the layer is written after it.
func TestLabelsAfterTheCommit(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	noError(t, n.fetch())
	_, err := n.apply()
	noError(t, err)
	info := content.Info{Digest: n.layer.desc.Digest, Labels: map[string]string{"uncompressed": "yes"}}
	_, err = n.store.Update(n.ctx, info, "labels.uncompressed")
	noError(t, err)
	if info, err = n.store.Info(n.ctx, n.layer.desc.Digest); err != nil || info.Labels["uncompressed"] != "yes" {
		t.Errorf("the layer has the labels %v, %v", info.Labels, err)
	}
	noError(t, n.pull.End(nil))
	n.checkStored(t)
}

// TestProgress checks that the progress of unpacking is reported in bytes of the blob.
func TestProgress(t *testing.T) {
	n := newNode(t, gzipLayer(t, 3, 100_000))
	noError(t, n.fetch())
	var last int64
	_, err := n.apply(diff.WithProgress(func(_ ocispec.Descriptor, done int64) { last = max(last, done) }))
	noError(t, err)
	if last != n.layer.desc.Size {
		t.Errorf("the last progress is %d, want %d", last, n.layer.desc.Size)
	}
}
