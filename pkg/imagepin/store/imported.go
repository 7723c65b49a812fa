package store

import (
	"context"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// A pull ends what an import allows: once a registry has returned a digest of a repository, the digest is pulled for all keys of
// the repository. Otherwise, another target or tag would still give it to callers without a credential.

// EndImported records that a registry has returned a digest of ref's repository: its keys that are imported become pulled. It
// writes nothing if there is none.
func (s *Store) EndImported(ctx context.Context, ref reference.Named, root digest.Digest) error {
	if !s.index.hasImported(root) {
		return nil
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	before, after := s.importedIn(ref.Name(), root)
	if len(before) == 0 {
		return nil
	}
	never := func(string) bool { return false }
	_, err = s.commit(ctx, nil, before, after, plan{mayCreate: never})
	return err
}

// inheritSources makes entries pulled whose digest was pulled before in their repository.
func (s *presence) inheritSources(entries []imagepin.Entry) {
	for i := range entries {
		e := &entries[i]
		if e.Source != imagepin.SourceImported {
			continue
		}
		if repository, ok := repositoryOf(e.Ref); ok && s.index.pulledIn(repository, e.Root.Digest) {
			e.Source = imagepin.SourcePull
		}
	}
}

// endImported returns the imported keys that become pulled with entries that are about to be recorded, as they are and as they
// become.
func (s *presence) endImported(entries []imagepin.Entry) (before, after []imagepin.Entry) {
	for i, e := range entries {
		if e.Source != imagepin.SourcePull || !s.index.hasImported(e.Root.Digest) {
			continue
		}
		repository, ok := repositoryOf(e.Ref)
		if !ok || slices.ContainsFunc(entries[:i], func(o imagepin.Entry) bool {
			return o.Source == e.Source && o.Root.Digest == e.Root.Digest && imagepin.InRepository(o.Ref, repository)
		}) {
			continue
		}
		was, now := s.importedIn(repository, e.Root.Digest)
		before, after = append(before, was...), append(after, now...)
	}
	other := func(o imagepin.Entry) bool { return has(entries, o.Key) }
	return slices.DeleteFunc(before, other), slices.DeleteFunc(after, other)
}

// importedIn returns the imported keys of a digest of a repository, and the same keys as pulled.
func (s *presence) importedIn(repository string, root digest.Digest) (before, after []imagepin.Entry) {
	for _, e := range s.ByRoot(root) {
		if e.Source != imagepin.SourceImported || !imagepin.InRepository(e.Ref, repository) {
			continue
		}
		before = append(before, e)
		e.Source = imagepin.SourcePull
		after = append(after, e)
	}
	return before, after
}

func repositoryOf(ref string) (string, bool) {
	named, err := reference.ParseNamed(ref)
	if err != nil {
		return "", false
	}
	return named.Name(), true
}

// hasImported reports whether a key of a digest is imported. Most nodes have no such key.
func (x *index) hasImported(root digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.imported[root] > 0
}

// pulledIn reports whether a digest was pulled in a repository.
func (x *index) pulledIn(repository string, root digest.Digest) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.ContainsFunc(x.byRoot[root], func(e *held) bool {
		return e.Source == imagepin.SourcePull && imagepin.InRepository(e.Ref, repository)
	})
}
