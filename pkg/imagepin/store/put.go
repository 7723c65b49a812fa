package store

import (
	"context"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Put records that keys are ready. An entry replaces the current entry of its key. A lease of the caller must hold the
// content and snapshots of the entries, see [Store.AddToLease]. If proof is not empty, Put adds it to the records that
// carry the keys.
//
// Put writes only differences.
func (s *Store) Put(ctx context.Context, proof string, entries ...imagepin.Entry) (Change, error) {
	return s.PutChosen(ctx, proof, func() ([]imagepin.Entry, error) { return entries, nil })
}

// PutChosen is [Store.Put] of the entries that choose returns. No key changes meanwhile: what was decided before is checked there once
// more. If choose fails, PutChosen fails with its error. choose must not wait.
func (s *Store) PutChosen(ctx context.Context, proof string, choose func() ([]imagepin.Entry, error)) (Change, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	entries, err := choose()
	if err != nil {
		return Change{}, err
	}
	return s.put(ctx, proof, entries, nil)
}

// put is Put for a caller that holds the mutex. pre must hold for anything to be written. A nil pre always holds.
func (s *writer) put(ctx context.Context, proof string, entries []imagepin.Entry, pre precondition) (Change, error) {
	entries, replaced, changed := s.diffEntries(proof, entries)
	imported, pulled := s.endImported(entries)
	changed = changed || len(imported) > 0
	if !changed && pre == nil {
		var err error
		if changed, err = s.overwritten(ctx, entries); err != nil {
			return Change{}, err
		}
	}
	if !changed {
		s.index.replace(nil, entries) // so that what was found out about them before is outdated
		return Change{}, nil
	}
	// Update the snapshots first, so that no record exists whose snapshot has no reference.
	for _, e := range entries {
		if err := s.keepSnapshot(ctx, e); err != nil {
			return Change{}, err
		}
	}
	kept, err := s.keepByDigest(ctx, replaced, entries)
	if err != nil {
		return Change{}, err
	}
	entries = append(entries, kept...)
	before, after, err := s.displaced(entries)
	if err != nil {
		return Change{}, err
	}
	superseded := s.superseded(entries)
	removed := func(e imagepin.Entry) bool { return has(superseded, e.Key) }
	imported, pulled = slices.DeleteFunc(imported, removed), slices.DeleteFunc(pulled, removed)
	// Entries that move to another record are written first, so that a record carries each key at any time.
	replaced, entries = slices.Concat(replaced, before, superseded, imported, s.damagedElsewhere(entries)), append(after, entries...)
	p := plan{proof: usedProof(proof), mayCreate: s.creatorFor(entries), precondition: pre, needed: true}
	ch, err := s.commit(ctx, nil, replaced, append(entries, pulled...), p)
	if err != nil {
		return ch, err
	}
	return ch, s.releaseSuperseded(ctx, superseded)
}

// releaseSuperseded releases the snapshots of superseded keys. They are collected later.
func (s *writer) releaseSuperseded(ctx context.Context, superseded []imagepin.Entry) error {
	if len(superseded) == 0 {
		return nil
	}
	failpoint.Reach("store.superseded")
	defer s.config.Released()
	return s.releaseSnapshots(ctx, superseded)
}

// superseded returns the unused keys whose image has become ready for another target under the same reference since. Such keys
// stay after a change of the default snapshotter until the image is unpacked in the new one. If the image was ready for both
// before, the unused key stays: its handler may come back.
func (s *presence) superseded(by []imagepin.Entry) []imagepin.Entry {
	var all []imagepin.Entry
	for _, n := range by {
		for _, e := range s.ByRef(n.Ref) {
			_, used := s.config.Runtimes().ForTarget(e.Target)
			if !used && e.Target.Platform == n.Target.Platform && e.Root.Digest == n.Root.Digest && n.ReadyAt.After(e.UnusedAt) && !has(by, e.Key) {
				all = append(all, e)
			}
		}
	}
	return all
}

// keepByDigest returns the images that lose their tag to another digest, under their own digest, unless they have such a
// key or have lost content. It keeps their snapshots. As with stock containerd, they stay until they are removed:
// containers may run them.
func (s *presence) keepByDigest(ctx context.Context, replaced, by []imagepin.Entry) ([]imagepin.Entry, error) {
	var kept []imagepin.Entry
	for _, e := range replaced {
		tag, err := reference.ParseNamed(e.Ref)
		if _, isDigest := tag.(reference.Digested); err != nil || isDigest {
			continue
		}
		if slices.ContainsFunc(by, func(n imagepin.Entry) bool { return n.Key == e.Key && n.Root.Digest == e.Root.Digest }) {
			continue // its source or its record changes, not its digest
		}
		byDigest, err := RecordName(tag, e.Root.Digest)
		if err != nil {
			continue
		}
		k := imagepin.Key{Ref: byDigest, Target: e.Target}
		if _, ok := s.Get(k); ok || slices.ContainsFunc(by, func(n imagepin.Entry) bool { return n.Key == k }) {
			continue
		}
		if e.Record, err = RecordName(tag, e.RecordTarget.Digest); err != nil {
			continue
		}
		e.Key = k
		if err := s.keepSnapshot(ctx, e); errdefs.IsNotFound(err) {
			continue
		} else if err != nil {
			return nil, err
		}
		kept = append(kept, e)
	}
	return kept, nil
}

// Recorded reports whether Put has nothing to write.
func (s *presence) Recorded(ctx context.Context, proof string, entries ...imagepin.Entry) (bool, error) {
	entries, _, changed := s.diffEntries(proof, entries)
	if imported, _ := s.endImported(entries); changed || len(imported) > 0 {
		return false, nil
	}
	changed, err := s.overwritten(ctx, entries)
	return !changed, err
}

// overwritten reports whether another tool has deleted or moved a record of an entry. [Store.Sync] updates the index
// later, when the event of that change arrives.
func (s *presence) overwritten(ctx context.Context, entries []imagepin.Entry) (bool, error) {
	targets := make(map[string]digest.Digest)
	for _, e := range entries {
		targets[e.Record] = e.RecordTarget.Digest
		if s.hasTagRecord(e) {
			targets[e.Ref] = e.RecordTarget.Digest
		}
	}
	for _, name := range slices.Sorted(maps.Keys(targets)) {
		img, err := s.record(ctx, name)
		if err != nil {
			return false, err
		}
		if img == nil || img.Target.Digest != targets[name] {
			return true, nil
		}
	}
	return false, nil
}

// diffEntries returns entries as they are to be recorded, and the current entries that they replace. changed is false
// if all of them and the proof are already recorded.
func (s *presence) diffEntries(proof string, entries []imagepin.Entry) (wanted, replaced []imagepin.Entry, changed bool) {
	wanted = slices.Clone(entries)
	s.inheritSources(wanted)
	s.chooseRecords(wanted)
	for i, e := range wanted {
		old, ok := s.Get(e.Key)
		switch {
		case ok && sameImage(old, e):
			wanted[i] = old // keeps ReadyAt
			changed = changed || !s.hasProofOn(e.Record, proof)
		case ok:
			replaced, changed = append(replaced, old), true
		default:
			changed = true
		}
	}
	return wanted, replaced, changed
}

// sameImage reports whether an entry a has nothing to gain from b. What another tool has recorded takes no mark of durability away.
func sameImage(a, b imagepin.Entry) bool {
	if (a.Durable == "") != (b.Durable == "") && (b.Durable != "" || b.Source == imagepin.SourcePull) {
		return false
	}
	return a.Root.Digest == b.Root.Digest && a.Manifest == b.Manifest && a.ImageID == b.ImageID &&
		a.ChainID == b.ChainID && a.Record == b.Record && a.RecordTarget.Digest == b.RecordTarget.Digest &&
		(a.Source == b.Source || b.Source != imagepin.SourcePull) // a pull replaces an entry of another tool
}
