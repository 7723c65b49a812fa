package store

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Report is what a check found.
type Report struct {
	// Checked is how many keys were looked at.
	Checked  int
	Findings []Finding
	// Records are the image records that the keys were compared with.
	Records []images.Image
}

// Finding is something that is not as it is recorded.
type Finding struct {
	// Subject is the key or the record.
	Subject string
	// Problem is what is wrong, in words.
	Problem string

	store *Store
	entry imagepin.Entry
	loss  Loss // of a lost key
	kind  findingKind
}

type findingKind int

const (
	// unclaimed: a label cannot be read, is for a target that no handler has, or
	// stands where it does not count; or a record is no key's.
	unclaimed findingKind = iota
	// lost: content or snapshot of a key is gone.
	lost
	// astray: the record of a key is not as it should be.
	astray
	// broken: the file of a layer is damaged, which the key can do without.
	broken
)

// Repair is what was done about a finding, in words.
type Repair string

// What can be done about a finding.
const (
	Unpacked  Repair = "unpacked again from what is here"
	Fetched   Repair = "fetched again by its digest"
	Recorded  Repair = "recorded again: what it needs is here"
	Restored  Repair = "records and labels restored"
	Dropped   Repair = "key dropped"
	Unwanted  Repair = "nothing: it was removed meanwhile"
	LeftAlone Repair = "left alone"
)

// Unclaimed is a finding of something that is nobody's to repair.
func Unclaimed(subject, problem string) Finding {
	return Finding{Subject: subject, Problem: problem, kind: unclaimed}
}

// Repair says what would mend it.
func (f Finding) Repair() string {
	switch f.kind {
	case lost:
		if f.loss.Wait {
			return "wait until it can be read"
		}
		return "unpack it again from what is here, or else fetch it by its digest, or else drop the key"
	case astray:
		return "restore its records and labels"
	case broken:
		return "fetch it again by its digest"
	}
	return "leave it alone"
}

// Mend repairs a finding, and tells how. remake makes a key ready that has lost
// something; where it cannot, the key is dropped, so that the image is not taken
// for present, and the error says why.
func (f Finding) Mend(ctx context.Context, remake func(context.Context, Loss) (Repair, error)) (Repair, error) {
	switch f.kind {
	case lost:
		done, err := remake(ctx, f.loss)
		if err == nil {
			return done, nil
		}
		if f.loss.Wait || f.loss.Hollow && errdefs.IsFailedPrecondition(err) {
			return LeftAlone, err // it may be there when its snapshotter answers, or a container goes
		}
		if derr := f.store.giveUp(ctx, f.entry); derr != nil {
			return LeftAlone, fmt.Errorf("%w; and cannot drop the key: %w", err, derr)
		}
		return Dropped, err
	case broken:
		done, err := remake(ctx, f.loss)
		if err != nil {
			return LeftAlone, err // the key runs without it
		}
		return done, nil
	case astray:
		if err := f.store.Realign(ctx, f.entry); err != nil {
			return LeftAlone, err
		}
		return Restored, nil
	}
	return LeftAlone, nil
}

// Check compares the keys with what there is: manifest, configuration, snapshot,
// the records, and the layers that are kept. It writes nothing.
func (s *Store) Check(ctx context.Context) (Report, error) {
	have, err := s.Inventory(ctx)
	if err != nil {
		return Report{}, err
	}
	return s.CheckAgainst(ctx, have)
}

// CheckAgainst is [Store.Check] with what there is.
func (s *Store) CheckAgainst(ctx context.Context, have *Inventory) (Report, error) {
	broken, err := have.DamagedLayers(ctx, s.Content)
	if err != nil {
		return Report{}, err
	}
	all, err := s.Records.List(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("list images: %w", err)
	}
	records := make(map[string]images.Image, len(all))
	for _, img := range all {
		records[img.Name] = img
	}
	r := Report{Records: all}
	known := make(map[string]imagepin.Entry) // by the names of their labels
	for _, img := range s.Images() {
		for _, e := range img.Entries {
			r.Checked++
			label := imagepin.KeyLabelName(e.Key)
			known[label] = e
			if loss, gone := s.lost(e, have); gone {
				r.lost(s, loss)
			}
			if why := misrecorded(e, label, records); why != "" {
				r.add(s, astray, e, why)
			}
		}
	}
	for _, img := range all {
		s.checkLabels(img, known, have, &r)
	}
	s.checkLayers(broken, have, &r)
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return compareEntries(&a.entry, &b.entry) })
	return r, nil
}

// giveUp drops a key, whether it is in the index or only recorded.
func (s *Store) giveUp(ctx context.Context, e imagepin.Entry) error {
	if _, err := s.Remove(ctx, e.Key); err != nil {
		return err
	}
	return s.Drop(ctx, e)
}

func (r *Report) lost(s *Store, l Loss) {
	r.add(s, lost, l.Entry, l.Why)
	r.Findings[len(r.Findings)-1].loss = l
}

func (r *Report) add(s *Store, kind findingKind, e imagepin.Entry, problem string) {
	r.Findings = append(r.Findings, Finding{Subject: e.Key.String(), Problem: problem, store: s, entry: e, kind: kind})
}

// misrecorded says what is wrong with the records of an entry.
func misrecorded(e imagepin.Entry, label string, records map[string]images.Image) string {
	img, ok := records[e.Record]
	switch {
	case !ok:
		return "its record " + e.Record + " is gone"
	case img.Target.Digest != e.RecordTarget.Digest:
		return fmt.Sprintf("its record %s targets %s, not %s", e.Record, img.Target.Digest, e.RecordTarget.Digest)
	case img.Labels[label] == "":
		return "its record " + e.Record + " does not carry its label"
	}
	if _, ok := records[e.ImageID.String()]; !ok {
		return "the record of its image ID " + e.ImageID.String() + " is gone"
	}
	return ""
}

// checkLabels reports the key labels of a record that are in no index.
func (s *Store) checkLabels(img images.Image, known map[string]imagepin.Entry, have *Inventory, r *Report) {
	for name, value := range img.Labels {
		if !imagepin.IsKeyLabel(name) {
			continue
		}
		if e, ok := known[name]; ok && e.Record == img.Name && imagepin.IsKeyLabelOf(e, value) {
			continue
		}
		e, err := imagepin.DecodeKeyLabel(name, value)
		if err != nil {
			r.Findings = append(r.Findings, Unclaimed(img.Name, err.Error()))
			continue
		}
		e.Record, e.RecordTarget = img.Name, img.Target
		known, ok := s.Get(e.Key)
		switch {
		case ok && known.Record == img.Name:
		case ok:
			r.add(s, unclaimed, e, fmt.Sprintf("record %s claims it too; %s is what counts", img.Name, known.Record))
		default:
			loss, gone := s.lost(e, have)
			if !gone {
				loss = Loss{Entry: e, Why: "it is recorded on " + img.Name + " but not in use", Mendable: true}
			}
			r.lost(s, loss)
		}
	}
}

// Realign writes the records of an entry again, as far as they differ.
func (s *Store) Realign(ctx context.Context, e imagepin.Entry) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	now, ok := s.Get(e.Key)
	if !ok {
		return nil
	}
	_, err = s.apply(ctx, nil, []imagepin.Entry{now}, "")
	return err
}
