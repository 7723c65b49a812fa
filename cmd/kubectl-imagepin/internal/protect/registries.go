package protect

import (
	"context"
	"sync"

	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
)

// Repository reads and writes the tags of a repository. Its errors are [registry.ErrNotFound], [registry.ErrRefused], or others
// without an answer of the registry.
type Repository interface {
	// Registry returns the host of the registry.
	Registry() string
	// Resolve returns the digest of a tag, or of a digest if the registry has it.
	Resolve(ctx context.Context, reference string) (digest.Digest, error)
	// Tag sets a tag to a manifest that the registry has.
	Tag(ctx context.Context, tag string, d digest.Digest) error
	// Untag deletes a tag.
	Untag(ctx context.Context, tag string) error
	// CanUntag returns why Untag would not delete a tag, or would delete more. It tries it with a tag.
	CanUntag(ctx context.Context, tag string) error
}

// Repositories returns the repository with a normalized name.
type Repositories func(name string) (Repository, error)

// Limits of what happens at a time. The registry client limits the requests to one registry.
const (
	registriesAtATime   = 64
	repositoriesAtATime = 16
)

// each calls fn for each digest with its repository, and returns the items. Registries do not wait for each other. In each
// repository, the first digest goes before the others, so that one which refuses tags is asked once.
func (r *Run) each(ctx context.Context, needs []Need, fn func(context.Context, Repository, Need) Item) []Item {
	var mu sync.Mutex
	var items []Item
	add := func(i Item) {
		mu.Lock()
		defer mu.Unlock()
		items = append(items, i)
	}
	registries := make(map[string]map[Repository][]Need)
	byName := make(map[string]Repository)
	for _, need := range needs {
		repo, ok := byName[need.Repository]
		if !ok {
			var err error
			if repo, err = r.Repository(need.Repository); err != nil {
				add(failed(r.item(need, Failed), err))
				continue
			}
			byName[need.Repository] = repo
		}
		if registries[repo.Registry()] == nil {
			registries[repo.Registry()] = make(map[Repository][]Need)
		}
		registries[repo.Registry()][repo] = append(registries[repo.Registry()][repo], need)
	}
	var all errgroup.Group
	all.SetLimit(registriesAtATime)
	for _, repositories := range registries {
		all.Go(func() error {
			var group errgroup.Group
			group.SetLimit(repositoriesAtATime)
			for repo, needs := range repositories {
				group.Go(func() error {
					r.inRepository(ctx, repo, needs, fn, add)
					return nil
				})
			}
			return group.Wait()
		})
	}
	_ = all.Wait() // the functions return no errors
	return items
}

// inRepository calls fn for each digest of a repository.
func (r *Run) inRepository(ctx context.Context, repo Repository, needs []Need, fn func(context.Context, Repository, Need) Item, add func(Item)) {
	first := fn(ctx, repo, needs[0])
	add(first)
	var group errgroup.Group
	group.SetLimit(repositoriesAtATime)
	for _, need := range needs[1:] {
		if first.Status == Refused {
			item := r.item(need, Refused)
			item.Reason = first.Reason
			add(item)
			continue
		}
		group.Go(func() error {
			add(fn(ctx, repo, need))
			return nil
		})
	}
	_ = group.Wait() // the functions return no errors
}
