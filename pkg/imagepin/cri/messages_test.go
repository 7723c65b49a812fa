package cri

import (
	"maps"
	"slices"
	"testing"

	"github.com/opencontainers/go-digest"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestMessagesOfOneAnswer compares the messages of many images, which are allocated together, with those of each image alone.
func TestMessagesOfOneAnswer(t *testing.T) {
	s := newTestService(t, 1).imageCalls
	native := s.Runtimes().Default().Target
	other := runtimeplatform.Target{Platform: native.Platform, Snapshotter: "second"}
	image := func(name string, refs []string, targets ...runtimeplatform.Target) store.Image {
		img := store.Image{ID: digest.FromString(name)}
		for _, ref := range refs {
			for _, target := range targets {
				img.Entries = append(img.Entries, imagepin.Entry{Key: imagepin.Key{Ref: ref, Target: target}, ImageID: img.ID, Size: 7, User: "1000:5"})
			}
		}
		return img
	}
	byDigest := "registry.example/app@" + digest.FromString("x").String()
	all := []store.Image{
		image("a", []string{"registry.example/app:2", "registry.example/app:1", byDigest}, native),
		image("b", []string{byDigest}, other),
		image("c", []string{"registry.example/app:3"}, other, native),
		image("d", []string{"registry.example/app:4"}, native),
		image("e", []string{"registry.example/app:5", "registry.example/app:6", "registry.example/app:7"}, other, native),
		image("f", []string{byDigest, "registry.example/app:8"}, other),
	}
	m := s.newMessages(len(all))
	var got []*runtime.Image
	for _, img := range all {
		got = append(got, m.image(img))
	}
	both := native.String() + ", " + other.String()
	targets := []string{native.String(), other.String(), both, native.String(), both, other.String()}
	for i, img := range all {
		if got := received(t, got[i]).GetSpec().GetAnnotations(); !maps.Equal(got, map[string]string{targetsAnnotation: targets[i]}) {
			t.Errorf("image %d of an answer: a client gets annotations %v, want %s", i, got, targets[i])
		}
		if alone := s.newMessages(1).image(img); !proto.Equal(got[i], alone) {
			t.Errorf("image %d of an answer: got %v, want %v", i, got[i], alone)
		}
	}
	want := &runtime.Image{
		Id: all[4].ID.String(), RepoTags: []string{"registry.example/app:5", "registry.example/app:6", "registry.example/app:7"}, Size: 7, Uid: &runtime.Int64Value{Value: 1000},
		Spec: &runtime.ImageSpec{Image: all[4].ID.String(), Annotations: map[string]string{targetsAnnotation: both}},
	}
	if got := received(t, got[4]); !proto.Equal(got, want) {
		t.Errorf("image of two targets: got %v, want %v", got, want)
	}
	// An append must not write a name of another image.
	_ = append(got[0].RepoTags, "other")
	if got[0].RepoDigests[0] != byDigest {
		t.Errorf("names overlap: %v", got[0])
	}
}

// received returns a message as a client receives it.
func received(t *testing.T, img *runtime.Image) *runtime.Image {
	t.Helper()
	data, err := proto.Marshal(img)
	if err != nil {
		t.Fatal(err)
	}
	got := &runtime.Image{}
	if err := proto.Unmarshal(data, got); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestListIsFresh checks that a change of an answer is not in the next one, and that a change of the store is.
func TestListIsFresh(t *testing.T) {
	s := newTestService(t, 3).imageCalls
	before := s.list(nil)
	want := proto.Clone(before[1])
	for _, img := range before {
		clear(img.Spec.ProtoReflect().GetUnknown())
		img.RepoTags[0], img.Pinned = "changed", true
	}
	if got := s.list(nil)[1]; !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	keys := s.Store.ByID(digest.Digest(want.(*runtime.Image).Id))
	tag := keys[slices.IndexFunc(keys, func(e imagepin.Entry) bool { return !isDigested(e.Ref) })]
	if _, err := s.Store.Remove(s.namespaced(t.Context()), tag.Key); err != nil {
		t.Fatal(err)
	}
	if got := s.list(nil); len(got[1].RepoTags) > 0 || len(got[1].RepoDigests) != 1 || len(got[0].RepoTags) != 1 {
		t.Errorf("after the removal of %s: got %v", tag.Key, got)
	}
}
