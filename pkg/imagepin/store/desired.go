package store

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const deletedLabel = "" // containerd removes a label that has an empty value

// view is the set of entries after a change.
type view struct {
	// entries are the entries of each record, by record name, in a stable order.
	entries map[string]group
	// native reports whether a target's platform is the node's own.
	native func(runtimeplatform.Target) bool
	// pinned reports whether a reference is one of the CRI's pinned images.
	pinned func(ref string) bool
	// preferred reports whether an entry for a target wins if all else is equal.
	preferred func(runtimeplatform.Target) bool
}

// add appends an entry.
func (v view) add(e *held) {
	v.entries[e.Record] = append(v.entries[e.Record], e)
	if id := e.ImageID.String(); id != e.Record {
		v.entries[id] = append(v.entries[id], e)
	}
	if e.Ref != e.Record && v.native(e.target.Value()) {
		v.entries[e.Ref] = append(v.entries[e.Ref], e)
	}
}

// RecordName returns the name of the record that carries the keys of an image in ref's repository. target is the digest
// that the record targets.
func RecordName(ref reference.Named, target digest.Digest) (string, error) {
	name, err := reference.WithDigest(reference.TrimNamed(ref), target)
	if err != nil {
		return "", fmt.Errorf("record for %s: %w", ref, err)
	}
	return name.String(), nil
}

// record is the desired state of an image record. A nil *record means that there is no record.
type record struct {
	target ocispec.Descriptor
	keys   map[string]string
	pinned bool
}

// desired returns the desired state of the record called name. current is its current state, or nil if it does not
// exist.
func (v view) desired(name string, current *images.Image) (*record, error) {
	about := v.entries[name]
	if len(about) == 0 {
		return nil, nil
	}
	r := &record{keys: map[string]string{}}
	for _, e := range about {
		r.pinned = r.pinned || v.pinned(e.Ref)
		if e.Record != name {
			continue
		}
		label, value, err := keyLabel(e, current)
		if err != nil {
			return nil, err
		}
		r.keys[label] = value
	}
	if len(r.keys) > 0 {
		// The record that carries a key keeps its image alive.
		i := slices.IndexFunc(about, func(e *held) bool { return e.Record == name })
		r.target = about[i].entry().RecordTarget
		return r, nil
	}
	if isID(name) && current != nil {
		// All live targets of an ID are equal, so keep the current one.
		for _, e := range about {
			if e.targetDigest() == current.Target.Digest {
				r.target = e.entry().RecordTarget
				return r, nil
			}
		}
	}
	r.target = slices.MaxFunc(about, v.compare).entry().RecordTarget
	return r, nil
}

// keyLabel returns the label of an entry. Most labels of a record with many keys are already correct, and comparing
// them costs less than encoding them.
func keyLabel(h *held, current *images.Image) (name, value string, _ error) {
	e := h.entry()
	if current != nil {
		name = imagepin.KeyLabelName(e.Key)
		if value = current.Labels[name]; value != "" && imagepin.IsKeyLabelOf(e, value) {
			return name, value, nil
		}
	}
	return imagepin.EncodeKeyLabel(e)
}

// compare orders entries by their priority as the target of a tag. The entry that was made ready last wins.
func (v view) compare(a, b *held) int {
	forA, forB := a.target.Value(), b.target.Value()
	return cmp.Or(
		order.Bool(v.native(forA), v.native(forB)),
		a.ReadyAt.Compare(b.ReadyAt),
		order.Bool(v.preferred(forA), v.preferred(forB)),
	)
}

func isID(name string) bool {
	_, err := digest.Parse(name)
	return err == nil
}

// change is one write to the image store.
type change struct {
	image      images.Image
	fieldpaths []string // of an update; none for a create
	create     bool
	remove     bool
	// after is the record after the write.
	after images.Image
}

// allFields returns the field paths of everything that a create writes.
func (c *change) allFields() []string {
	fields := []string{"target"}
	for _, label := range slices.Sorted(maps.Keys(c.image.Labels)) {
		fields = append(fields, "labels."+label)
	}
	return fields
}

// retargets reports whether the change gives the record a new target.
func (c *change) retargets() bool { return c.create || slices.Contains(c.fieldpaths, "target") }

func (c *change) write(ctx context.Context, store images.Store) error {
	var (
		err  error
		verb string
	)
	switch {
	case c.remove:
		verb, err = "delete", store.Delete(ctx, c.image.Name)
		c.after = images.Image{Name: c.image.Name}
		if errdefs.IsNotFound(err) {
			err = nil
		}
	case c.create:
		verb = "create"
		if c.after, err = store.Create(ctx, c.image); errdefs.IsAlreadyExists(err) {
			// Without a transaction, another tool can create the record first. For example, containerd's CRI writes
			// image IDs.
			c.after, err = store.Update(ctx, c.image, c.allFields()...)
		}
	default:
		verb = "update"
		c.after, err = store.Update(ctx, c.image, c.fieldpaths...)
	}
	if err != nil {
		return fmt.Errorf("%s image record %s: %w", verb, c.image.Name, err)
	}
	return nil
}

// diff returns the write that turns current into want. It reports false if they do not differ. gone are the names of
// the key labels that this operation removes. Other key labels, and the labels of other tools, stay.
func diff(name string, current *images.Image, want *record, gone map[string]struct{}, proof *imagepin.Proof) (change, bool) {
	if want == nil {
		return change{image: images.Image{Name: name}, remove: true}, current != nil
	}
	labels := map[string]string{upstream.ImageLabel: upstream.Managed}
	var now map[string]string
	if current != nil {
		now = current.Labels
	}
	maps.Copy(labels, pinnedLabels(now, want.pinned))
	for k, v := range want.keys {
		labels[k] = v
	}
	var proofs map[string]string
	if proof != nil && len(want.keys) > 0 {
		proofs = provedBy(current, *proof)
		maps.Copy(labels, proofs)
	}
	if current == nil {
		return change{image: images.Image{Name: name, Target: want.target, Labels: labels}, create: true}, true
	}

	c := change{image: images.Image{Name: name, Target: want.target, Labels: map[string]string{}}}
	set := func(label, value string) {
		c.image.Labels[label] = value
		c.fieldpaths = append(c.fieldpaths, "labels."+label)
	}
	if current.Target.Digest != want.target.Digest {
		c.fieldpaths = append(c.fieldpaths, "target")
	}
	for label, value := range labels {
		if current.Labels[label] != value {
			set(label, value)
		}
	}
	for label := range gone {
		if _, here := current.Labels[label]; here && want.keys[label] == "" {
			set(label, deletedLabel)
		}
	}
	for label := range current.Labels {
		if _, kept := proofs[label]; !kept && proofs != nil && strings.HasPrefix(label, imagepin.ProofLabelPrefix) {
			set(label, deletedLabel)
		}
	}
	return c, len(c.fieldpaths) > 0
}

// strip removes the labels in gone from a record, and keeps the rest of it.
func strip(current images.Image, gone map[string]struct{}) (change, bool) {
	c := change{image: images.Image{Name: current.Name, Labels: map[string]string{}}}
	for label := range gone {
		if _, here := current.Labels[label]; here {
			c.image.Labels[label] = deletedLabel
			c.fieldpaths = append(c.fieldpaths, "labels."+label)
		}
	}
	return c, len(c.fieldpaths) > 0
}

// provedBy returns the labels of a record's proofs after the use of one, or nil if there is nothing to record. current is nil for a new
// record.
func provedBy(current *images.Image, used imagepin.Proof) map[string]string {
	var proofs []imagepin.Proof
	if current != nil {
		proofs = imagepin.ProofsOf(current.Labels)
	}
	proofs, changed := imagepin.WithProof(proofs, used)
	if !changed {
		return nil
	}
	labels := make(map[string]string, len(proofs))
	for _, p := range proofs {
		name, value := p.Label()
		if current != nil && p.MAC != used.MAC {
			value = current.Labels[name] // as it is, also if it cannot be read
		}
		labels[name] = value
	}
	return labels
}
