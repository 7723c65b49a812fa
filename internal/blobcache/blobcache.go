// Package blobcache keeps the manifests and configurations of images in memory while many images are read.
//
// An image has several records, and containerd reads the same blobs for each of them several times. Each time it looks up
// the blob in its database, and opens the file.
package blobcache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/lru"
)

const (
	// maxSize is the largest size of all blobs in a cache, in bytes.
	maxSize = 16 << 20
	// maxBlob is the largest size of a blob in a cache, in bytes.
	maxBlob = 64 << 10
)

// Store is a content store that reads each manifest, index and configuration once. It keeps no blob that does not match its
// digest, so a damaged blob is read again after it was repaired. A blob that is deleted stays readable until [Store.Drop], so a Store is only for readers that run before anything can be removed, or that do not depend on it.
// It is safe for concurrent use.
type Store struct {
	content.Store

	mu    sync.Mutex
	blobs *lru.Cache // []byte by key; nil after Drop
	size  int        // of blobs
}

type key struct {
	namespace string
	digest    digest.Digest
}

// New returns a store in front of another one, with an empty cache.
func New(store content.Store) *Store {
	s := &Store{Store: store}
	s.blobs = lru.NewWithEvictionFunc(0, func(_ lru.Key, b any) { s.size -= len(b.([]byte)) }) // the size limits it, not the number
	return s
}

// Drop ends the cache. Later reads are from the store behind it.
func (s *Store) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blobs = nil
}

// ReaderAt implements content.Provider. Blobs of other media types are not cached.
func (s *Store) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	namespace, ok := namespaces.Namespace(ctx)
	if !ok || !cacheable(desc.MediaType) {
		return s.Store.ReaderAt(ctx, desc)
	}
	k := key{namespace, desc.Digest}
	if b, ok := s.get(k); ok {
		return reader{bytes.NewReader(b)}, nil
	}
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || r.Size() > maxBlob {
		return r, err
	}
	b := make([]byte, r.Size())
	n, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) || n < len(b) || desc.Digest.Validate() != nil || desc.Digest.Algorithm().FromBytes(b) != desc.Digest {
		return r, nil // the caller gets what the store has, and the same error
	}
	_ = r.Close() // all has been read
	s.put(k, b)
	return reader{bytes.NewReader(b)}, nil
}

func cacheable(mediaType string) bool {
	return images.IsManifestType(mediaType) || images.IsIndexType(mediaType) || images.IsConfigType(mediaType)
}

func (s *Store) get(k key) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blobs == nil {
		return nil, false
	}
	found, ok := s.blobs.Get(k)
	b, _ := found.([]byte)
	return b, ok
}

func (s *Store) put(k key, b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blobs == nil {
		return
	}
	if _, here := s.blobs.Get(k); here {
		return
	}
	s.blobs.Add(k, b)
	for s.size += len(b); s.size > maxSize; {
		s.blobs.RemoveOldest()
	}
}

// reader reads a blob in memory.
type reader struct{ *bytes.Reader }

// Close implements io.Closer.
func (reader) Close() error { return nil }
