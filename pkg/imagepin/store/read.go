package store

import (
	"iter"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Get returns the entry of a key. It reports false if the key is not ready.
func (s *reader) Get(k imagepin.Key) (imagepin.Entry, bool) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	if e := s.index.get(k); e != nil {
		return e.entry(), true
	}
	return imagepin.Entry{}, false
}

// ByRef returns the entries of a normalized reference, one per target.
func (s *reader) ByRef(ref string) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRef[ref].values()
}

// HasRef reports whether a normalized reference has entries.
func (s *reader) HasRef(ref string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return len(s.index.byRef[ref]) > 0
}

// ByID returns the entries of an image ID, for all references and targets.
func (s *reader) ByID(id digest.Digest) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byID[id].values()
}

// InRepository reports whether an image ID has an entry in a repository, given by its full name, and with this manifest if it
// is not empty. An image can have entries in hundreds of repositories.
func (s *reader) InRepository(id, manifest digest.Digest, repository string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.ContainsFunc(s.index.byID[id], func(e *held) bool {
		return (manifest == "" || e.Manifest == manifest) && imagepin.InRepository(e.Ref, repository)
	})
}

// InRegistry reports whether an image ID has an entry with this manifest that a registry, given by its domain, or a mirror of it has
// resolved. A copy that an apply made from content on the node is none.
func (s *reader) InRegistry(id, manifest digest.Digest, registry string) bool {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return slices.ContainsFunc(s.index.byID[id], func(e *held) bool {
		return e.Manifest == manifest && e.Host != "" && strings.HasPrefix(e.Ref, registry+"/")
	})
}

// ByRecord returns the entries whose labels a record carries.
func (s *reader) ByRecord(name string) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRecord[name].values()
}

// ByRoot returns the entries of a root digest, for all repositories and targets.
func (s *reader) ByRoot(root digest.Digest) []imagepin.Entry {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byRoot[root].values()
}

// ByManifest returns the entries of a platform's manifest, for all references and targets. It reads all entries.
func (s *reader) ByManifest(manifest digest.Digest) (found []imagepin.Entry) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	for _, g := range s.index.byID {
		for _, e := range g {
			if e.Manifest == manifest {
				found = append(found, e.entry())
			}
		}
	}
	return found
}

// Find returns the entries for an image name in a CRI request. The name is an image ID, a prefix of an image ID, or a
// reference in any form that users write. Find follows containerd's CRI (see package upstream). It
// returns nil for an unknown image.
func (s *reader) Find(name string) []imagepin.Entry {
	if len(name) > imagepin.MaxReference {
		return nil
	}
	if name == "" || strings.HasSuffix(name, ":") {
		return nil // it is the beginning of every image ID, and would find the only image of a node
	}
	if es := s.ByRef(name); len(es) > 0 {
		return es // it is normalized
	}
	if id, err := digest.Parse(name); err == nil {
		return s.ByID(id)
	}
	if ref, err := reference.ParseDockerRef(name); err == nil {
		if es := s.ByRef(ref.String()); len(es) > 0 {
			return es
		}
		if _, digested := ref.(reference.Digested); digested {
			// An image of another platform that was pulled by the digest of the index. Its record has the name with the digest of the manifest.
			if es := s.ByRecord(ref.String()); len(es) > 0 {
				return es
			}
		}
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	return s.index.byShortID(name).values()
}

// Image is an image ID with its entries.
type Image struct {
	ID      digest.Digest
	Entries []imagepin.Entry // at least one, in a stable order
}

// Images returns all images of the node, in no particular order.
func (s *reader) Images() []Image {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	all := make([]Image, 0, len(s.index.byID))
	for id, g := range s.index.byID {
		all = append(all, Image{ID: id, Entries: g.values()})
	}
	return all
}

// InOrder returns the images of one moment in the order of their IDs, and their number. It copies the entries of one image at a time:
// they are valid until the next image.
func (s *reader) InOrder() (count int, images iter.Seq[Image]) {
	all := s.index.inOrder()
	return len(all), func(yield func(Image) bool) {
		var entries []imagepin.Entry
		for _, g := range all {
			entries = g.appendTo(entries[:0])
			if !yield(Image{ID: g[0].ImageID, Entries: entries}) {
				return
			}
		}
	}
}
