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

// Finding is a pin whose record is not as it should be.
type Finding struct {
	// Record is the name of the record.
	Record string
	// Problem is what is wrong, in words.
	Problem string
	// Repair is what [Store.Repair] would do, in words.
	Repair string

	id ID // of a pin to write again; the zero value is none
}

const (
	writeAgain = "write its record again"
	ignore = "leave it alone"
	// WrittenAgain is what [Store.Repair] has done.
	WrittenAgain = "record written again"
	// LeftAlone says that [Store.Repair] has done nothing.
	Ignored = "left alone"
)

// Check compares the records of the pins with the pins that are in force, and
// writes nothing. checked is how many pins and records it has looked at.
func (s *Store) Check(ctx context.Context) (checked int, findings []Finding, _ error) {
	all, err := s.Images.List(namespaced(ctx))
	if err != nil {
		return 0, nil, fmt.Errorf("list pins: %w", err)
	}
	names := make(map[string]ID)
	for _, p := range s.List() {
		names[p.ID.String()] = p.ID
	}
	unrecorded := maps.Clone(names)
	var doubtful []string
	for _, img := range all {
		if s.problem(img, names[img.Name]) != nil {
			doubtful = append(doubtful, img.Name)
		}
		delete(unrecorded, img.Name)
	}
	doubtful = slices.AppendSeq(doubtful, maps.Keys(unrecorded))
	for _, name := range doubtful {
		found, err := s.again(ctx, name, names[name])
		if err != nil {
			return 0, nil, err
		}
		findings = append(findings, found...)
	}
	slices.SortFunc(findings, func(a, b Finding) int { return strings.Compare(a.Record, b.Record) })
	return len(all) + len(unrecorded), findings, nil
}

// again looks at one record while nobody writes it: a pin may have changed since
// the records were listed. id is that of the pin in force under its name; the
// zero value is none.
func (s *Store) again(ctx context.Context, name string, id ID) ([]Finding, error) {
	if err := s.write.Lock(ctx, name); err != nil {
		return nil, err
	}
	defer s.write.Unlock(name)
	img, err := s.Images.Get(namespaced(ctx), name)
	if errdefs.IsNotFound(err) {
		if _, ok := s.Get(id); !ok {
			return nil, nil // removed meanwhile
		}
		return []Finding{{Record: name, Problem: "its record is gone", Repair: writeAgain, id: id}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read pin %s: %w", name, err)
	}
	if f := s.problem(img, id); f != nil {
		return []Finding{*f}, nil
	}
	return nil, nil
}

// problem says what is wrong with a record; nil where nothing is.
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
			f.Repair, f.id = writeAgain, held.ID
		}
	case errdefs.IsNotImplemented(err):
		f.Problem = err.Error() + "; what it pins is not pulled"
	case err != nil:
		f.Problem = err.Error() + "; it is ignored, and the next pin of this name replaces it"
	case !inForce:
		f.Problem = "it is not in force: another tool wrote it, and the next start reads it"
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
		return err.Error() + "; the pin that is in force is another one"
	case recorded.Root.Digest != held.Root.Digest:
		return fmt.Sprintf("its record says %s, and %s is in force", recorded.Root.Digest, held.Root.Digest)
	}
	return "its record says something else than what is in force"
}

// sameFacts reports whether a record that was read says what is in force.
func sameFacts(recorded, held Pin) bool {
	a, aerr := recorded.record()
	b, berr := held.record()
	return aerr == nil && berr == nil && sameRecord(a, b)
}

// Repair writes the record of a finding again, where a pin is in force that it
// should be of, and says what it has done. It fails as [Store.MakeFor] does.
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
		return Ignored, nil // removed meanwhile
	}
	img, err := held.record()
	if err == nil {
		err = s.put(namespaced(ctx), f.id, img)
	}
	if err != nil {
		return Ignored, err
	}
	return WrittenAgain, nil
}
