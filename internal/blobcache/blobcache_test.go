package blobcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tracker counts the blobs that are opened and not closed again.
type tracker struct {
	content.Store
	blobs map[string][]byte // by namespace and digest

	mu           sync.Mutex
	opened, open int
	fail         error // of reading
	short        bool  // reads return less than the size
}

func (s *tracker) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	namespace, _ := namespaces.Namespace(ctx)
	b, ok := s.blobs[namespace+desc.Digest.String()]
	if !ok {
		return nil, errors.New("not found")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened++
	s.open++
	return &tracked{bytes.NewReader(b), s}, nil
}

type tracked struct {
	*bytes.Reader
	store *tracker
}

func (r *tracked) ReadAt(p []byte, off int64) (int, error) {
	if r.store.fail != nil {
		return 0, r.store.fail
	}
	if r.store.short {
		p = p[:len(p)/2]
	}
	return r.Reader.ReadAt(p, off)
}

func (r *tracked) Close() error {
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	r.store.open--
	return nil
}

const namespace = "k8s.io"

func (s *tracker) add(text []byte) ocispec.Descriptor {
	d := digest.FromBytes(text)
	if s.blobs == nil {
		s.blobs = make(map[string][]byte)
	}
	s.blobs[namespace+d.String()] = text
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(text))}
}

// read reads a blob, and checks what it gets.
func read(ctx context.Context, t *testing.T, s *Store, desc ocispec.Descriptor, want []byte) {
	t.Helper()
	r, err := s.ReaderAt(ctx, desc)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := make([]byte, len(want))
	if n, err := r.ReadAt(got, 0); n != len(want) || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes %.20q, %v, want %.20q", n, got, err, want)
	}
	if r.Size() != int64(len(want)) {
		t.Errorf("got size %d, want %d", r.Size(), len(want))
	}
}

func TestStore(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	behind := &tracker{}
	s := New(behind)
	text := []byte(`{"schemaVersion":2}`)
	manifest := behind.add(text)
	layer, unknown := manifest, manifest
	layer.MediaType, unknown.MediaType = ocispec.MediaTypeImageLayerGzip, ""
	index, config := behind.add([]byte("index")), behind.add([]byte("config"))
	index.MediaType, config.MediaType = ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageConfig
	large := bytes.Repeat([]byte("x"), maxBlob+1)
	for _, c := range []struct {
		name string
		desc ocispec.Descriptor
		text []byte
		want int // how often it is opened to read it three times
	}{
		{"manifest", manifest, text, 1},
		{"index", index, []byte("index"), 1},
		{"config", config, []byte("config"), 1},
		{"layer", layer, text, 3},
		{"no media type", unknown, text, 3},
		{"empty", behind.add(nil), nil, 1},
		{"large", behind.add(large), large, 3},
	} {
		behind.opened = 0
		for range 3 {
			read(ctx, t, s, c.desc, c.text)
		}
		if behind.opened != c.want {
			t.Errorf("%s: opened %d times, want %d", c.name, behind.opened, c.want)
		}
	}
	if _, err := s.ReaderAt(namespaces.WithNamespace(t.Context(), "other"), manifest); err == nil {
		t.Error("a blob can be read in another namespace")
	}
	if _, err := s.ReaderAt(t.Context(), manifest); err == nil {
		t.Error("a blob can be read without a namespace")
	}
	s.Drop()
	behind.opened = 0
	read(ctx, t, s, manifest, text)
	read(ctx, t, s, manifest, text)
	if behind.opened != 2 {
		t.Errorf("after Drop: opened %d times, want 2", behind.opened)
	}
	if behind.open != 0 {
		t.Errorf("%d readers are not closed", behind.open)
	}
}

// TestFailedReadIsNotCached checks that the caller gets the error of a read, and that a later read is independent of it.
func TestFailedReadIsNotCached(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	behind := &tracker{}
	s := New(behind)
	text := []byte(`{"schemaVersion":2}`)
	manifest := behind.add(text)
	behind.fail = errors.New("input/output error")
	if _, err := content.ReadBlob(ctx, s, manifest); !errors.Is(err, behind.fail) {
		t.Errorf("got %v, want %v", err, behind.fail)
	}
	behind.fail, behind.short = nil, true
	r, err := s.ReaderAt(ctx, manifest)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := r.ReadAt(make([]byte, len(text)), 0); n != len(text)/2 {
		t.Errorf("got %d bytes of a short read, want %d", n, len(text)/2)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	behind.short = false
	read(ctx, t, s, manifest, text)
	if behind.open != 0 {
		t.Errorf("%d readers are not closed", behind.open)
	}
}

// TestDamageIsNotCached checks that a blob whose file is damaged is read as the store has it, and again after its repair.
func TestDamageIsNotCached(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	behind := &tracker{}
	s := New(behind)
	text, damage := []byte(`{"schemaVersion":2}`), []byte(`{"schemaVersion":3}`)
	manifest := behind.add(text)
	behind.blobs[namespace+manifest.Digest.String()] = damage
	read(ctx, t, s, manifest, damage)
	behind.blobs[namespace+manifest.Digest.String()] = text
	read(ctx, t, s, manifest, text)
	if behind.open != 0 {
		t.Errorf("%d readers are not closed", behind.open)
	}
}

// TestCacheIsBounded reads more than fits, and checks that what is used again stays.
func TestCacheIsBounded(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	behind := &tracker{}
	s := New(behind)
	used := []byte("used")
	desc := behind.add(used)
	for i := range 3 * maxSize / maxBlob {
		text := bytes.Repeat(fmt.Appendf(nil, "%08d", i), maxBlob/8)
		read(ctx, t, s, behind.add(text), text)
		read(ctx, t, s, desc, used)
		if want := s.blobs.Len()*maxBlob - (maxBlob - len(used)); s.size > maxSize || s.size != want {
			t.Fatalf("got %d bytes in the cache, want %d, and at most %d", s.size, want, maxSize)
		}
	}
	if want := 3*maxSize/maxBlob + 1; behind.opened != want {
		t.Errorf("opened %d times, want %d", behind.opened, want)
	}
}

// TestConcurrentReads reads and drops concurrently, for the race detector.
func TestConcurrentReads(t *testing.T) {
	ctx := namespaces.WithNamespace(t.Context(), namespace)
	behind := &tracker{}
	s := New(behind)
	var texts [][]byte
	var all []ocispec.Descriptor
	for i := range 50 {
		text := fmt.Appendf(nil, "manifest %d", i)
		texts, all = append(texts, text), append(all, behind.add(text))
	}
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for i, desc := range all {
				if got, err := content.ReadBlob(ctx, s, desc); err != nil || !bytes.Equal(got, texts[i]) {
					t.Errorf("got %q, %v, want %q", got, err, texts[i])
				}
			}
		})
	}
	s.Drop()
	readers.Wait()
	if behind.open != 0 {
		t.Errorf("%d readers are not closed", behind.open)
	}
	if s.blobs != nil {
		t.Error("the cache has blobs after Drop")
	}
}
