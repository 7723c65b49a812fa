package store

import (
	"cmp"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/go-digest/digestset"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// index holds the entries in memory, by all keys that they are looked up by. Entries in the index are immutable.
type index struct {
	mu       sync.RWMutex
	byKey    map[imagepin.Key]*imagepin.Entry
	byRef    map[string]group
	byID     map[digest.Digest]group
	byRecord map[string]group
	byRoot   map[digest.Digest]group
	// bySnapshot has the entries that need a snapshot.
	bySnapshot map[snapshot]group
	// imported counts the entries of each root that are imported.
	imported map[digest.Digest]int
	ids      *digestset.Set
	proofs   proofs
	// pinned are the records whose image another tool has pinned.
	pinned map[string]struct{}
	// untagged are the records of image IDs that had no key when they were noted.
	untagged map[digest.Digest]Untagged
	// unreadable are such records whose configuration was gone.
	unreadable map[digest.Digest]bool
	// unsynced are the records that containerd's CRI may not know yet, with their targets.
	unsynced map[string]digest.Digest
	// damaged are the keys that are recorded but not ready. None of them is in byKey.
	damaged map[imagepin.Key]Damaged
}

// snapshot identifies a committed snapshot.
type snapshot struct {
	snapshotter string
	chainID     digest.Digest
}

func snapshotOf(e *imagepin.Entry) snapshot { return snapshot{e.Target.Snapshotter, e.ChainID} }

// group is a set of entries in a stable order.
type group []*imagepin.Entry

func newIndex() *index {
	return &index{
		byKey:      make(map[imagepin.Key]*imagepin.Entry),
		byRef:      make(map[string]group),
		byID:       make(map[digest.Digest]group),
		byRecord:   make(map[string]group),
		byRoot:     make(map[digest.Digest]group),
		bySnapshot: make(map[snapshot]group),
		imported:   make(map[digest.Digest]int),
		ids:        digestset.NewSet(),
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
		if now := x.byKey[e.Key]; now != nil && now.Record == e.Record {
			x.remove(e.Key)
		}
	}
	for _, e := range added {
		x.remove(e.Key)
		x.add(&e)
	}
}

func (x *index) add(e *imagepin.Entry) {
	x.byKey[e.Key] = e
	delete(x.damaged, e.Key)
	x.byRef[e.Ref] = x.byRef[e.Ref].with(e)
	x.byRecord[e.Record] = x.byRecord[e.Record].with(e)
	x.byRoot[e.Root.Digest] = x.byRoot[e.Root.Digest].with(e)
	x.bySnapshot[snapshotOf(e)] = x.bySnapshot[snapshotOf(e)].with(e)
	if e.Source == imagepin.SourceImported {
		x.imported[e.Root.Digest]++
	}
	if len(x.byID[e.ImageID]) == 0 {
		// Add cannot fail, because the digest was validated when the entry was made.
		_ = x.ids.Add(e.ImageID)
	}
	x.byID[e.ImageID] = x.byID[e.ImageID].with(e)
}

func (x *index) remove(k imagepin.Key) {
	e := x.byKey[k]
	if e == nil {
		return
	}
	delete(x.byKey, k)
	removeFrom(x.byRef, e.Ref, e)
	removeFrom(x.byRecord, e.Record, e)
	removeFrom(x.byRoot, e.Root.Digest, e)
	removeFrom(x.bySnapshot, snapshotOf(e), e)
	if e.Source == imagepin.SourceImported {
		if x.imported[e.Root.Digest]--; x.imported[e.Root.Digest] == 0 {
			delete(x.imported, e.Root.Digest)
		}
	}
	removeFrom(x.byID, e.ImageID, e)
	if len(x.byID[e.ImageID]) == 0 {
		_ = x.ids.Remove(e.ImageID)
	}
}

// related returns the entries that share their image, reference or record with any of the given entries.
func (x *index) related(some ...[]imagepin.Entry) map[imagepin.Key]*imagepin.Entry {
	x.mu.RLock()
	defer x.mu.RUnlock()
	found := make(map[imagepin.Key]*imagepin.Entry)
	note := func(g group) {
		for _, e := range g {
			found[e.Key] = e
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
		if x.byKey[e.Key] == e {
			still = append(still, *e)
		}
	}
	return still
}

// all returns every entry.
func (x *index) all() map[*imagepin.Entry]bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	all := make(map[*imagepin.Entry]bool, len(x.byKey))
	for _, e := range x.byKey {
		all[e] = true
	}
	return all
}

func removeFrom[K comparable](m map[K]group, k K, e *imagepin.Entry) {
	if g := m[k].without(e); len(g) > 0 {
		m[k] = g
	} else {
		delete(m, k)
	}
}

// with and without return copies, because a reader may hold the old group.
func (g group) with(e *imagepin.Entry) group {
	i, _ := slices.BinarySearchFunc(g, e, compareEntries)
	return slices.Concat(g[:i], group{e}, g[i:])
}

func (g group) without(e *imagepin.Entry) group {
	return slices.DeleteFunc(slices.Clone(g), func(o *imagepin.Entry) bool { return o == e })
}

// Compare orders entries by their keys.
func Compare(a, b imagepin.Entry) int { return compareEntries(&a, &b) }

func compareEntries(a, b *imagepin.Entry) int {
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
		es = append(es, *e)
	}
	return es
}
