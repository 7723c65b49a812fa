package store

import (
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Get gives the entry of a key that is ready.
func (s *Store) Get(k imagepin.Key) (imagepin.Entry, bool) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if e := s.index.byKey[k]; e != nil {
		return *e, true
	}
	return imagepin.Entry{}, false
}

// ByRef gives the entries of a normalized reference, one per target.
func (s *Store) ByRef(ref string) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRef[ref].values()
}

// ByID gives the entries of an image ID, of all its references and targets.
func (s *Store) ByID(id digest.Digest) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byID[id].values()
}

// ByRecord gives the entries whose labels a record carries.
func (s *Store) ByRecord(name string) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRecord[name].values()
}

// ByRoot gives the entries of a digest that registries gave, of all repositories and
// targets.
func (s *Store) ByRoot(root digest.Digest) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRoot[root].values()
}

// Find gives the entries that an image name of a CRI request means: an image
// ID, a reference in any of the forms that users write, or the beginning of an
// image ID. It is how containerd's CRI looks images up (LocalResolve in
// internal/cri/server/images/service.go). An unknown image has no entries.
func (s *Store) Find(name string) []imagepin.Entry {
	if id, err := digest.Parse(name); err == nil {
		return s.ByID(id)
	}
	if ref, err := reference.ParseDockerRef(name); err == nil {
		if es := s.ByRef(ref.String()); len(es) > 0 {
			return es
		}
		if es := s.byManifest(ref); len(es) > 0 {
			return es
		}
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	id, err := s.index.ids.Lookup(name)
	if err != nil {
		return nil
	}
	return s.index.byID[id].values()
}

// byManifest finds an image of another platform by its manifest's digest,
// which is the name of its record, though it was pulled by the index's.
func (s *Store) byManifest(ref reference.Named) []imagepin.Entry {
	if _, ok := ref.(reference.Digested); !ok {
		return nil
	}
	return s.ByRecord(ref.String())
}

// Image is what is on the node under one image ID.
type Image struct {
	ID      digest.Digest
	Entries []imagepin.Entry // at least one, in a stable order
}

// Images gives every image of the node, in no particular order.
func (s *Store) Images() []Image {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	all := make([]Image, 0, len(s.index.byID))
	for id, g := range s.index.byID {
		all = append(all, Image{ID: id, Entries: g.values()})
	}
	return all
}
