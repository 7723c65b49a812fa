package pin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
)

// Finding is a pin with a wrong or missing record.
type Finding struct {
	// Record is the name of the record.
	Record string
	// Problem describes what is wrong.
	Problem string
	// Repair describes what [Store.Repair] would do.
	Repair string

	id ID // the pin whose record to repair, zero for none
}

const (
	repairRecord = "repair its record"
	ignore       = "ignore it"
	// RecordRepaired is the result of [Store.Repair] if it has written the record.
	RecordRepaired = "record repaired"
	// Ignored is the result of [Store.Repair] if it has done nothing.
	Ignored = "ignored"
)

// Check compares the records of the pins with the active pins, and writes nothing. checked is the number of pins and
// records that it compared.
func (s *Store) Check(ctx context.Context) (checked int, findings []Finding, _ error) {
	all, err := s.config.Images.List(namespaced(ctx))
	if err != nil {
		return 0, nil, fmt.Errorf("list pins: %w", err)
	}
	all = slices.DeleteFunc(all, func(img images.Image) bool { return img.Name == LockRecord })
	names := make(map[string]ID)
	for _, p := range s.table.List() {
		names[p.ID.String()] = p.ID
	}
	unrecorded := maps.Clone(names)
	var suspect []string
	for _, img := range all {
		if s.problem(img, names[img.Name]) != nil {
			suspect = append(suspect, img.Name)
		}
		delete(unrecorded, img.Name)
	}
	suspect = slices.AppendSeq(suspect, maps.Keys(unrecorded))
	for _, name := range suspect {
		found, err := s.recheck(ctx, name, names[name])
		if err != nil {
			return 0, nil, err
		}
		findings = append(findings, found...)
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Record, b.Record) })
	return len(all) + len(unrecorded), findings, nil
}

// recheck checks one record under the mutex of its pin, which may have changed since the records were listed. id is the
// active pin with the record's name, or the zero value.
func (s *Store) recheck(ctx context.Context, name string, id ID) ([]Finding, error) {
	if err := s.write.Lock(ctx, name); err != nil {
		return nil, err
	}
	defer s.write.Unlock(name)
	img, err := s.config.Images.Get(namespaced(ctx), name)
	if errdefs.IsNotFound(err) {
		if _, ok := s.Get(id); !ok {
			return nil, nil // the pin was removed
		}
		return []Finding{{Record: name, Problem: "its record is gone", Repair: repairRecord, id: id}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pin %s: %w", name, err)
	}
	if f := s.problem(img, id); f != nil {
		return []Finding{*f}, nil
	}
	return nil, nil
}

// problem returns what is wrong with a record, or nil.
func (s *Store) problem(img images.Image, id ID) *Finding {
	f := Finding{Record: img.Name, Repair: ignore}
	p, err := read(img)
	if err == nil {
		id = p.ID
	}
	held, inForce := s.Get(id)
	switch {
	case inForce && (err != nil || !sameFacts(p, held)):
		f.Problem = differenceProblem(err, p, held)
		if !errdefs.IsNotImplemented(err) {
			f.Repair, f.id = repairRecord, held.ID
		}
	case errdefs.IsNotImplemented(err):
		f.Problem = err.Error() + "; its reference is not pulled"
	case err != nil:
		f.Problem = err.Error() + "; it is ignored, and a new pin with this name replaces it"
	case !inForce:
		f.Problem = "it is not active: another tool wrote it, and the next start loads it"
	case !images.IsIndexType(p.Root.MediaType) && !images.IsManifestType(p.Root.MediaType):
		f.Problem = fmt.Sprintf("it targets %q (%s), which is neither an index nor a manifest", p.Root.MediaType, p.Root.Digest)
	default:
		return nil
	}
	return &f
}

func differenceProblem(err error, recorded, held Pin) string {
	switch {
	case err != nil:
		return err.Error() + "; the active pin is different"
	case recorded.Root.Digest != held.Root.Digest:
		return fmt.Sprintf("its record has digest %s, but the active pin has %s", recorded.Root.Digest, held.Root.Digest)
	}
	return "its record differs from the active pin"
}

// sameFacts reports whether a pin that was read from its record equals the active pin.
func sameFacts(recorded, held Pin) bool {
	a, aerr := recorded.record()
	b, berr := held.record()
	return aerr == nil && berr == nil && sameRecord(a, b)
}

// Repair writes the record of a finding again if there is an active pin for it. done describes what it has done. Repair
// returns the same errors as [Store.MakeForNamespace].
func (s *Store) Repair(ctx context.Context, f Finding) (done string, _ error) {
	if f.id == (ID{}) {
		return Ignored, nil
	}
	if err := s.write.Lock(ctx, f.Record); err != nil {
		return Ignored, err
	}
	defer s.write.Unlock(f.Record)
	held, ok := s.Get(f.id)
	if !ok {
		return Ignored, nil // the pin was removed
	}
	img, err := held.record()
	if err == nil {
		err = s.put(namespaced(ctx), f.id, img)
	}
	if err != nil {
		return Ignored, err
	}
	s.set(f.id, &held)
	return RecordRepaired, nil
}
