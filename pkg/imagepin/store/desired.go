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

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/order"
)

// The labels of containerd's CRI (internal/cri/labels/labels.go): what says
// that a record is the CRI's, and that kubelet must not remove the image.
const (
	criManagedLabel  = "io.cri-containerd.image"
	criManagedValue  = "managed"
	criPinnedLabel   = "io.cri-containerd.pinned"
	criPinnedValue   = "pinned"
	deletedLabel     = "" // containerd drops a label that is set to nothing
	maxProofsARecord = 16
)

// view is the set of entries as it will be.
type view struct {
	// about are the entries that each record is about, by its name, in a stable
	// order.
	about map[string]group
	// native tells whether an entry's platform is the node's own.
	native func(imagepin.Entry) bool
	// pinned tells whether a reference is one of the CRI's pinned images.
	pinned func(ref string) bool
	// preferred is the target that wins where all else is equal.
	preferred func(*imagepin.Entry) bool
}

// add puts an entry behind the others.
func (v view) add(e *imagepin.Entry) {
	v.about[e.Record] = append(v.about[e.Record], e)
	if id := e.ImageID.String(); id != e.Record {
		v.about[id] = append(v.about[id], e)
	}
	if e.Ref != e.Record && v.native(*e) {
		v.about[e.Ref] = append(v.about[e.Ref], e)
	}
}

// RecordName is the name of the record that carries the keys of an image of
// ref's repository whose records target the given digest.
func RecordName(ref reference.Named, target digest.Digest) (string, error) {
	name, err := reference.WithDigest(reference.TrimNamed(ref), target)
	if err != nil {
		return "", fmt.Errorf("record for %s: %w", ref, err)
	}
	return name.String(), nil
}

// record is how one image record should be. A nil *record means that there
// should be none.
type record struct {
	target ocispec.Descriptor
	keys   map[string]string
	pinned bool
}

// desired derives how the record called name should be from the entries.
// current is the record as it is, if it exists.
func (v view) desired(name string, current *images.Image) (*record, error) {
	about := v.about[name]
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
		// The record that carries a key is what keeps it alive.
		i := slices.IndexFunc(about, func(e *imagepin.Entry) bool { return e.Record == name })
		r.target = about[i].RecordTarget
		return r, nil
	}
	if isID(name) && current != nil {
		// Any live target of an ID is as good as another.
		for _, e := range about {
			if e.RecordTarget.Digest == current.Target.Digest {
				r.target = e.RecordTarget
				return r, nil
			}
		}
	}
	r.target = slices.MaxFunc(about, v.compare).RecordTarget
	return r, nil
}

// keyLabel gives the label of an entry. Most of those on a record of many keys are
// there as they should be, which costs less to see than to make them.
func keyLabel(e *imagepin.Entry, current *images.Image) (name, value string, _ error) {
	if current != nil {
		name = imagepin.KeyLabelName(e.Key)
		if value = current.Labels[name]; value != "" && imagepin.IsKeyLabelOf(*e, value) {
			return name, value, nil
		}
	}
	return imagepin.EncodeKeyLabel(*e)
}

// compare orders entries by how good they are as the meaning of a tag: what
// was made ready last wins.
func (v view) compare(a, b *imagepin.Entry) int {
	return cmp.Or(
		order.Bool(v.native(*a), v.native(*b)),
		a.ReadyAt.Compare(b.ReadyAt),
		order.Bool(v.preferred(a), v.preferred(b)),
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
	// after is the record as the write leaves it.
	after images.Image
}

// allFields are the field paths of all that a create writes.
func (c *change) allFields() []string {
	fields := []string{"target"}
	for _, label := range slices.Sorted(maps.Keys(c.image.Labels)) {
		fields = append(fields, "labels."+label)
	}
	return fields
}

// retargets reports whether a record means another image after a change.
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
			// Without a transaction, another tool can come first: containerd's CRI
			// writes image IDs.
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

// diff gives the write that turns current into want, if one is needed. gone
// are the names of key labels that this operation takes away; a key label that
// is not among them stays, and so does every label of others.
func diff(name string, current *images.Image, want *record, gone map[string]struct{}, proof string) (change, bool) {
	if want == nil {
		return change{image: images.Image{Name: name}, remove: true}, current != nil
	}
	labels := map[string]string{criManagedLabel: criManagedValue}
	if want.pinned {
		labels[criPinnedLabel] = criPinnedValue
	}
	for k, v := range want.keys {
		labels[k] = v
	}
	if proof != "" && len(want.keys) > 0 {
		labels[imagepin.ProofLabelPrefix+proof] = proofValue()
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
		_, here := current.Labels[label]
		if strings.HasPrefix(label, imagepin.ProofLabelPrefix) && here {
			continue // when it was proved first is good enough
		}
		if current.Labels[label] != value {
			set(label, value)
		}
	}
	for label := range gone {
		if _, here := current.Labels[label]; here && want.keys[label] == "" {
			set(label, deletedLabel)
		}
	}
	for _, label := range surplusProofs(current.Labels, proof) {
		set(label, deletedLabel)
	}
	return c, len(c.fieldpaths) > 0
}

// strip takes the labels called gone off a record, and leaves the rest of it.
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

// surplusProofs are the oldest proofs of a record that has no room for one
// more: credentials that rotate must not fill a label map.
func surplusProofs(labels map[string]string, proof string) []string {
	if proof == "" || labels[imagepin.ProofLabelPrefix+proof] != "" {
		return nil
	}
	var names []string
	for label := range labels {
		if strings.HasPrefix(label, imagepin.ProofLabelPrefix) {
			names = append(names, label)
		}
	}
	if len(names) < maxProofsARecord {
		return nil
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(labels[a], labels[b]), cmp.Compare(a, b))
	})
	return names[:len(names)-maxProofsARecord+1]
}
