package protect

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	digest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

// removeOld deletes the tags whose digests nothing has needed for the grace time. What the cluster needs again by the time that the
// tags are deleted gets its tag back.
func (r *Run) removeOld(ctx context.Context) ([]Item, error) {
	tags, needs, err := r.old(ctx)
	if len(tags) == 0 || err != nil {
		return nil, err
	}
	if r.DryRun {
		var items []Item
		for _, o := range tags {
			items = append(items, r.oldItem(o, Removed, ""))
		}
		return items, nil
	}
	items := r.remove(ctx, tags, needs)
	// Somebody may have rolled back since the cluster was read. Who does so from now on finds no tag, and sets it.
	if needs, err = r.Needs(ctx); err != nil {
		return items, err
	}
	back := r.putBack(ctx, items, needs)
	items = slices.DeleteFunc(items, func(i Item) bool { return i.Status == Removed && i.Digest != "" && needs.Has(keyOf(i)) })
	err = r.update(ctx, func(s *State) {
		s.observe(needs, r.Selected, r.Now())
		for _, item := range items {
			if item.Status == Removed {
				s.remove(old{repository: item.Repository, digits: strings.TrimPrefix(item.Tag, r.Cluster.tag(""))})
			}
		}
	})
	return append(back, items...), err
}

// old returns the tags to delete, and what the cluster needs now.
func (r *Run) old(ctx context.Context) ([]old, *Needs, error) {
	list := func() ([]old, error) {
		text, err := r.Store.Read(ctx)
		if err != nil {
			return nil, err
		}
		s, err := ParseState(text)
		if err != nil {
			return nil, err
		}
		return s.olderThan(r.Now().Add(-r.Grace), r.Selected), nil
	}
	tags, err := list()
	if len(tags) == 0 || err != nil {
		return nil, nil, err
	}
	// Setting tags has taken a while.
	needs, err := r.Needs(ctx)
	if err != nil {
		return nil, nil, err
	}
	if tags, err = list(); err != nil {
		return nil, nil, err
	}
	needed := make(map[string]bool)
	for key := range needs.all {
		needed[key.Repository+"\n"+short(key.Digest)] = true
	}
	return slices.DeleteFunc(tags, func(o old) bool { return needed[o.repository+"\n"+o.digits] }), needs, nil
}

// remove deletes tags, and returns an item for each.
func (r *Run) remove(ctx context.Context, tags []old, needs *Needs) []Item {
	var mu sync.Mutex
	var items []Item
	add := func(i Item) {
		mu.Lock()
		defer mu.Unlock()
		items = append(items, i)
	}
	registries := make(map[string]map[Repository][]old)
	byName := make(map[string]Repository)
	for _, o := range tags {
		repo, ok := byName[o.repository]
		if !ok {
			var err error
			if repo, err = r.Repository(o.repository); err != nil {
				add(r.oldItem(o, Kept, err.Error()))
				continue
			}
			byName[o.repository] = repo
		}
		if registries[repo.Registry()] == nil {
			registries[repo.Registry()] = make(map[Repository][]old)
		}
		registries[repo.Registry()][repo] = append(registries[repo.Registry()][repo], o)
	}
	var all errgroup.Group
	all.SetLimit(registriesAtATime)
	for _, repositories := range registries {
		all.Go(func() error {
			r.inRegistry(ctx, repositories, needs, add)
			return nil
		})
	}
	_ = all.Wait() // the functions return no errors
	return items
}

// inRegistry deletes tags of a registry, one repository after the other. The first in which it can delete a tag shows that the
// registry does so, and that it deletes nothing else.
func (r *Run) inRegistry(ctx context.Context, repositories map[Repository][]old, needs *Needs, add func(Item)) {
	can := false
	repos := slices.SortedFunc(maps.Keys(repositories), func(x, y Repository) int {
		return strings.Compare(repositories[x][0].repository, repositories[y][0].repository)
	})
	for _, repo := range repos {
		if !can {
			if err := repo.CanUntag(ctx, r.Cluster.probe()); err != nil {
				for _, o := range repositories[repo] {
					add(r.oldItem(o, Kept, err.Error()))
				}
				continue
			}
			can = true
		}
		var group errgroup.Group
		group.SetLimit(repositoriesAtATime)
		for _, o := range repositories[repo] {
			group.Go(func() error {
				add(r.removeTag(ctx, repo, o, needs))
				return nil
			})
		}
		_ = group.Wait() // the functions return no errors
	}
}

// removeTag deletes a tag that still means the digest for which it was set.
func (r *Run) removeTag(ctx context.Context, repo Repository, o old, needs *Needs) Item {
	item := r.oldItem(o, Removed, "")
	d, err := repo.Resolve(ctx, item.Tag)
	switch {
	case errors.Is(err, registry.ErrNotFound):
		return item
	case err != nil:
		return kept(item, err)
	}
	item.Digest = d.String()
	switch {
	case !meansDigits(d, o.digits):
		return kept(item, errors.New("the tag means another digest"))
	case needs.Has(Key{o.repository, d}):
		return kept(item, errors.New("the digest is needed"))
	}
	if err := repo.Untag(ctx, item.Tag); err != nil && !errors.Is(err, registry.ErrNotFound) {
		return kept(item, err)
	}
	return item
}

func kept(item Item, err error) Item {
	item.Status, item.Reason = Kept, err.Error()
	return item
}

// putBack sets the tags of items that were removed and are needed now.
func (r *Run) putBack(ctx context.Context, items []Item, needs *Needs) []Item {
	removed := make(map[Key]bool)
	for _, item := range items {
		if item.Status == Removed && item.Digest != "" {
			removed[keyOf(item)] = true
		}
	}
	again := slices.DeleteFunc(needs.List(), func(n Need) bool { return !removed[n.Key] })
	return r.each(ctx, again, func(ctx context.Context, repo Repository, need Need) Item {
		return r.protect(ctx, repo, need, needs)
	})
}

func keyOf(i Item) Key { return Key{i.Repository, digest.Digest(i.Digest)} }
