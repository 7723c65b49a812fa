package store

import (
	"cmp"
	"iter"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// index holds the entries in memory, by all keys that they are looked up by. Entries in the index are immutable, see [held].
type index struct {
	mu        sync.RWMutex
	byRef     map[string]group // one of each target
	byID      map[digest.Digest]group
	sortedIDs sortedIDs // of byID
	byRecord  map[string]group
	byRoot    map[digest.Digest]group
	// bySnapshot has the entries that need a snapshot.
	bySnapshot map[snapshot]group
	// imported counts the entries of each root that are imported.
	imported map[digest.Digest]int
	proofs   proofs
	// pinned are the records whose image another tool has pinned.
	pinned map[string]struct{}
	// untagged are the records of image IDs that had no key when they were noted.
	untagged map[digest.Digest]Untagged
	// unreadable are such records whose configuration was gone.
	unreadable map[digest.Digest]bool
	// unsynced are the records that containerd's CRI may not know yet, with their targets.
	unsynced map[string]digest.Digest
	// damaged are the keys that are recorded but not ready. None of them is in byRef.
	damaged map[imagepin.Key]Damaged
}

// snapshot identifies a committed snapshot.
type snapshot struct {
	snapshotter string
	chainID     digest.Digest
}

// group is a set of entries in a stable order.
type group []*held

func newIndex() *index {
	return &index{
		byRef:      make(map[string]group),
		byID:       make(map[digest.Digest]group),
		byRecord:   make(map[string]group),
		byRoot:     make(map[digest.Digest]group),
		bySnapshot: make(map[snapshot]group),
		imported:   make(map[digest.Digest]int),
		proofs:     proofs{byRecord: make(map[string][]imagepin.Proof), count: make(map[string]int)},
		untagged:   make(map[digest.Digest]Untagged),
		pinned:     make(map[string]struct{}),
		unreadable: make(map[digest.Digest]bool),
		unsynced:   make(map[string]digest.Digest),
		damaged:    make(map[imagepin.Key]Damaged),
	}
}

// replace removes and then adds entries, in one step for readers.
func (x *index) replace(removed, added []imagepin.Entry) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range removed {
		if now := x.get(e.Key); now != nil && now.Record == e.Record {
			x.remove(e.Key)
		}
	}
	for _, e := range added {
		x.remove(e.Key)
		x.add(&e)
	}
}

// get returns the entry of a key, or nil. A reference has few targets.
func (x *index) get(k imagepin.Key) *held {
	for _, e := range x.byRef[k.Ref] {
		if e.target.Value() == k.Target {
			return e
		}
	}
	return nil
}

func (x *index) add(entry *imagepin.Entry) {
	e := hold(entry, x.byRecord[entry.Record])
	delete(x.damaged, entry.Key)
	x.byRef[e.Ref] = x.byRef[e.Ref].with(e)
	image := x.byID[e.ImageID].with(e)
	x.byID[e.ImageID] = image
	if len(image) == 1 {
		x.sortedIDs.forget()
	}
	x.byRecord[e.Record] = x.byRecord[e.Record].with(e).orSame(image)
	x.byRoot[e.Root.Digest] = x.byRoot[e.Root.Digest].with(e).orSame(image)
	x.bySnapshot[e.snapshot()] = x.bySnapshot[e.snapshot()].with(e).orSame(image)
	if e.Source == imagepin.SourceImported {
		x.imported[e.Root.Digest]++
	}
}

func (x *index) remove(k imagepin.Key) {
	e := x.get(k)
	if e == nil {
		return
	}
	removeFrom(x.byRef, e.Ref, e)
	removeFrom(x.byRecord, e.Record, e)
	removeFrom(x.byRoot, e.Root.Digest, e)
	removeFrom(x.bySnapshot, e.snapshot(), e)
	if e.Source == imagepin.SourceImported {
		if x.imported[e.Root.Digest]--; x.imported[e.Root.Digest] == 0 {
			delete(x.imported, e.Root.Digest)
		}
	}
	removeFrom(x.byID, e.ImageID, e)
	if len(x.byID[e.ImageID]) == 0 {
		x.sortedIDs.forget()
	}
}

// related returns the entries that share their image, reference or record with any of the given entries.
func (x *index) related(some ...[]imagepin.Entry) map[imagepin.Key]*held {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := make(map[imagepin.Key]*held)
	note := func(g group) {
		for _, e := range g {
			found[e.key()] = e
		}
	}
	ids, records := make(map[digest.Digest]bool), make(map[string]bool)
	for _, entries := range some {
		for i := range entries {
			e := &entries[i]
			note(x.byRef[e.Ref])
			if !ids[e.ImageID] {
				ids[e.ImageID] = true
				note(x.byID[e.ImageID])
			}
			if !records[e.Record] {
				records[e.Record] = true
				note(x.byRecord[e.Record])
			}
		}
	}
	return found
}

// needing returns the entries that need a snapshot.
func (x *index) needing(id snapshot) group {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.bySnapshot[id]
}

// unchanged returns the entries of since that have not been replaced.
func (x *index) unchanged(since group) []imagepin.Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var still []imagepin.Entry
	for _, e := range since {
		if x.get(e.key()) == e {
			still = append(still, e.entry())
		}
	}
	return still
}

// all returns every entry.
func (x *index) all() map[*held]bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make(map[*held]bool, len(x.byRef))
	for e := range x.each() {
		all[e] = true
	}
	return all
}

// each has every entry. The caller holds the lock of the index.
func (x *index) each() iter.Seq[*held] {
	return func(yield func(*held) bool) {
		for _, g := range x.byRef {
			for _, e := range g {
				if !yield(e) {
					return
				}
			}
		}
	}
}

func removeFrom[K comparable](m map[K]group, k K, e *held) {
	if g := m[k].without(e); len(g) > 0 {
		m[k] = g
	} else {
		delete(m, k)
	}
}

// with and without return copies, because a reader may hold the old group.
func (g group) with(e *held) group {
	i, _ := slices.BinarySearchFunc(g, e.key(), func(o *held, k imagepin.Key) int { return compareKeys(o.key(), k) })
	return slices.Concat(g[:i], group{e}, g[i:])
}

func (g group) without(e *held) group {
	return slices.DeleteFunc(slices.Clone(g), func(o *held) bool { return o == e })
}

// orSame returns other if it has the same entries, so that they are held once.
func (g group) orSame(other group) group {
	if slices.Equal(g, other) {
		return other
	}
	return g
}

// Compare orders entries by their keys.
func Compare(a, b imagepin.Entry) int { return compareKeys(a.Key, b.Key) }

func compareHeld(a, b *held) int { return compareKeys(a.key(), b.key()) }

func compareKeys(a, b imagepin.Key) int {
	return cmp.Or(
		cmp.Compare(a.Ref, b.Ref),
		cmp.Compare(a.Target.Platform, b.Target.Platform),
		cmp.Compare(a.Target.Snapshotter, b.Target.Snapshotter),
	)
}

func (g group) values() []imagepin.Entry {
	if len(g) == 0 {
		return nil
	}
	return g.appendTo(make([]imagepin.Entry, 0, len(g)))
}

func (g group) appendTo(es []imagepin.Entry) []imagepin.Entry {
	for _, e := range g {
		es = append(es, imagepin.Entry{})
		e.copyTo(&es[len(es)-1])
	}
	return es
}
