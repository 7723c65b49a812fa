package store

import (
	"reflect"
	"time"
	"unique"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// held is an [imagepin.Entry] as the index holds it, in a quarter of the memory: what keys have in common is held once. It is
// immutable.
type held struct {
	*facts
	Ref     string
	target  unique.Handle[runtimeplatform.Target]
	ReadyAt time.Time
	times   *times // nil if all of them are zero, as for most keys
}

// facts are what several keys of an image have in common. The fields are those of [imagepin.Entry].
type facts struct {
	Root     descriptor
	Manifest digest.Digest
	ImageID  digest.Digest
	ChainID  digest.Digest
	Size     int64
	User     string
	Source   imagepin.Source
	Host     string
	Durable  string
	Record   string
	// recordTarget is nil if the record targets Root.
	recordTarget *ocispec.Descriptor
	UserOmitted  bool
}

// times are those that few keys have.
type times struct{ damagedAt, usedAt, unusedAt time.Time }

// descriptor is an [ocispec.Descriptor]. Most have only these fields.
type descriptor struct {
	MediaType string
	Digest    digest.Digest
	Size      int64
	full      *ocispec.Descriptor // nil if it has no other fields
}

// hold returns an entry as the index holds it. It shares the facts of others, as far as they are the same.
func hold(e *imagepin.Entry, others group) *held {
	f := facts{
		Root: newDescriptor(e.Root), Manifest: e.Manifest, ImageID: e.ImageID, ChainID: e.ChainID, Size: e.Size, User: e.User,
		Source: e.Source, Host: e.Host, Durable: e.Durable, Record: e.Record, UserOmitted: e.UserOmitted,
	}
	if !same(&e.RecordTarget, &e.Root) {
		f.recordTarget = &e.RecordTarget
	}
	h := &held{Ref: e.Ref, target: unique.Make(e.Target), ReadyAt: e.ReadyAt}
	if t := (times{e.DamagedAt, e.UsedAt, e.UnusedAt}); t != (times{}) {
		h.times = &t
	}
	for _, o := range others {
		if f.equal(o.facts) {
			h.facts = o.facts
			return h
		}
	}
	if f.recordTarget != nil {
		f.recordTarget = &ocispec.Descriptor{}
		*f.recordTarget = e.RecordTarget
	}
	h.facts = &f
	return h
}

func (f *facts) equal(o *facts) bool {
	a, b := *f, *o
	a.recordTarget, a.Root.full = b.recordTarget, b.Root.full
	return a == b && same(f.recordTarget, o.recordTarget) && same(f.Root.full, o.Root.full)
}

func newDescriptor(d ocispec.Descriptor) descriptor {
	c := descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
	if !isShort(&d) {
		full := d
		c.full = &full
	}
	return c
}

// isShort reports whether a descriptor has only the fields of [descriptor].
func isShort(d *ocispec.Descriptor) bool {
	return d.URLs == nil && d.Annotations == nil && d.Data == nil && d.Platform == nil && d.ArtifactType == ""
}

// same reports whether two descriptors are equal, or both nil.
func same(a, b *ocispec.Descriptor) bool {
	if a == nil || b == nil {
		return a == b
	}
	if isShort(a) && isShort(b) {
		return a.Digest == b.Digest && a.Size == b.Size && a.MediaType == b.MediaType
	}
	return reflect.DeepEqual(a, b)
}

func (d descriptor) descriptor() ocispec.Descriptor {
	if d.full != nil {
		return *d.full
	}
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// targetDigest is the digest of the record's target.
func (f *facts) targetDigest() digest.Digest {
	if f.recordTarget != nil {
		return f.recordTarget.Digest
	}
	return f.Root.Digest
}

func (h *held) key() imagepin.Key { return imagepin.Key{Ref: h.Ref, Target: h.target.Value()} }

func (h *held) snapshot() snapshot { return snapshot{h.target.Value().Snapshotter, h.ChainID} }

func (h *held) entry() imagepin.Entry {
	var e imagepin.Entry
	h.copyTo(&e)
	return e
}

func (h *held) copyTo(e *imagepin.Entry) {
	root := h.Root.descriptor()
	*e = imagepin.Entry{
		Key: h.key(), Root: root, Manifest: h.Manifest, ImageID: h.ImageID, ChainID: h.ChainID, Size: h.Size, User: h.User, UserOmitted: h.UserOmitted,
		ReadyAt: h.ReadyAt, Source: h.Source, Host: h.Host, Durable: h.Durable, Record: h.Record, RecordTarget: root,
	}
	if h.recordTarget != nil {
		e.RecordTarget = *h.recordTarget
	}
	if t := h.times; t != nil {
		e.DamagedAt, e.UsedAt, e.UnusedAt = t.damagedAt, t.usedAt, t.unusedAt
	}
}
