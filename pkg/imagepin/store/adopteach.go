package store

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"golang.org/x/sync/errgroup"
)

// adoptGroups adopts several images at a time, each in writes of its own. Adoptions that share an image or a reference are adopted
// together: the order of their writes matters. The caller holds the lock, so there is no other writer.
func (s *writer) adoptGroups(ctx context.Context, adoptions []Adoption) (all Change, _ error) {
	var (
		mu     sync.Mutex
		failed []error
		calls  errgroup.Group
	)
	calls.SetLimit(s.config.AdoptAtATime)
	for _, group := range independent(adoptions) {
		calls.Go(func() error {
			change, err := s.adoptGroup(ctx, group)
			mu.Lock()
			defer mu.Unlock()
			all.Names, all.Wrote = append(all.Names, change.Names...), all.Wrote || change.Wrote
			failed = append(failed, err)
			return nil
		})
	}
	_ = calls.Wait() // the functions return no error, so that each is called
	return all, errors.Join(failed...)
}

// adoptGroup is [writer.adopt] in a goroutine of its own, where a panic would end the process.
func (s *writer) adoptGroup(ctx context.Context, group []Adoption) (_ Change, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return s.adopt(ctx, group)
}

// independent splits adoptions into groups that have no image, record or reference in common. It keeps the order within a group.
func independent(adoptions []Adoption) [][]Adoption {
	first := make(map[string]int) // the first adoption with a name or digest
	parent := make([]int, len(adoptions))
	root := func(i int) int {
		for parent[i] != i {
			i = parent[i]
		}
		return i
	}
	for i, a := range adoptions {
		parent[i] = i
		for _, name := range a.names() {
			j, ok := first[name]
			if !ok {
				first[name] = i
				continue
			}
			low, high := min(root(i), root(j)), max(root(i), root(j))
			parent[high] = low
		}
	}
	var groups [][]Adoption
	at := make(map[int]int)
	for i, a := range adoptions {
		r := root(i)
		g, ok := at[r]
		if !ok {
			g = len(groups)
			at[r], groups = g, append(groups, nil)
		}
		groups[g] = append(groups[g], a)
	}
	return groups
}

// names returns all by which the keys of two adoptions can depend on each other.
func (a Adoption) names() []string {
	names := []string{a.Image.Name, a.Image.Target.Digest.String()}
	for _, e := range a.Entries {
		names = append(names, e.Ref, e.Record, e.Root.Digest.String(), e.RecordTarget.Digest.String(), e.Manifest.String(), e.ImageID.String())
	}
	return names
}
