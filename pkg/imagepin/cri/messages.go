package cri

import (
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// targetsAnnotation lists the targets that an image is ready for, in the image's spec. ImageSpec.runtime_handler cannot
// be used for this: kubelet's image GC treats an image as unused if its handler is not the handler of its containers.
const targetsAnnotation = "io.imagepin.targets"

// messages makes the CRI messages of the images of one answer. kubelet asks for all images every few seconds, so they are allocated
// together, and images that are only ready for the same target share their annotations.
type messages struct {
	s            *imageCalls
	pinnedImages []string
	free         []message
	names        []string
	// target is the only one of the image before, and annotations are those of its message.
	target      runtimeplatform.Target
	annotations []byte
}

// message is the message of an image with the one in it.
type message struct {
	image runtime.Image
	spec  runtime.ImageSpec
}

// newMessages returns an answer for a number of images.
func (s *imageCalls) newMessages(count int) *messages {
	return &messages{s: s, pinnedImages: s.Settings().PinnedImages, free: make([]message, count), names: make([]string, 0, 2*count)}
}

// image returns the CRI message of the next image. There is one message per image ID, with the names of all its keys.
func (m *messages) image(img store.Image) *runtime.Image {
	out := &m.free[0]
	m.free = m.free[1:]
	uid, username := upstream.ImageUser(img.Entries[0].User)
	id := img.ID.String()
	image, spec := &out.image, &out.spec
	spec.Image = id
	// protobuf encodes maps by reflection, which took 60% of the encoding of a list. So the annotations are encoded once for all images
	// that have the same, as unknown fields: a client decodes them as Annotations, which is empty here.
	spec.ProtoReflect().SetUnknown(m.annotationsOf(img.Entries))
	image.Id, image.Size, image.Spec = id, uint64(img.Entries[0].Size), spec
	image.Uid, image.Username = uid, username
	image.RepoTags = m.namesOf(img.Entries, false)
	image.RepoDigests = m.namesOf(img.Entries, true)
	image.Pinned = m.isPinned(img)
	return image
}

// namesOf returns the references of entries by digest, or those by tag.
func (m *messages) namesOf(entries []imagepin.Entry, byDigest bool) []string {
	first := len(m.names)
	for i := range entries {
		if e := &entries[i]; isDigested(e.Ref) == byDigest && (e.UnusedAt.IsZero() || !m.s.Store.Expired(*e)) {
			m.names = append(m.names, e.Ref)
		}
	}
	names := m.names[first:]
	if len(names) == 0 {
		return nil
	}
	names = distinct(names)
	return names[:len(names):len(names)]
}

// annotationsOf returns the annotations of an image with the given entries, as the encoded message of an image spec.
func (m *messages) annotationsOf(entries []imagepin.Entry) []byte {
	first, only := entries[0].Target, true
	for i := range entries {
		only = only && entries[i].Target == first
	}
	if !only {
		var targets []string
		for i := range entries {
			targets = append(targets, entries[i].Target.String())
		}
		return encodeTargets(strings.Join(distinct(targets), ", "))
	}
	if m.annotations == nil || m.target != first {
		m.target, m.annotations = first, encodeTargets(first.String())
	}
	return m.annotations
}

func encodeTargets(targets string) []byte {
	encoded, err := proto.Marshal(&runtime.ImageSpec{Annotations: map[string]string{targetsAnnotation: targets}})
	if err != nil {
		return nil // a target is valid UTF-8
	}
	return slices.Clip(encoded) // several messages have it
}

// isPinned reports whether kubelet must not remove an image.
func (m *messages) isPinned(img store.Image) bool {
	if m.s.Store.Pinned(img.ID) {
		return true
	}
	for i := range img.Entries {
		e := &img.Entries[i]
		if slices.Contains(m.pinnedImages, e.Ref) {
			return true
		}
		if (i == 0 || e.Root.Digest != img.Entries[i-1].Root.Digest) && m.s.Pins.Retains(e.Root.Digest) {
			return true
		}
	}
	return false
}

func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
