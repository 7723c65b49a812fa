package store_test

import (
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	. "github.com/imagepin/imagepin/pkg/imagepin/store"
)

// pause is the pinned image of the test node.
const pause = "registry.example/pause:1"

// pinLabels returns the labels for pinned images on a record.
func (e *env) pinLabels(t *testing.T, record string) (pinned, mark string) {
	t.Helper()
	img, err := e.Images.Get(e.ctx, record)
	if err != nil {
		t.Fatal(err)
	}
	return img.Labels[CRIPinnedLabel], img.Labels[imagepin.PinnedImagesLabel]
}

func (e *env) sync(t *testing.T, record string) {
	t.Helper()
	if _, err := e.store.Sync(e.ctx, record); err != nil {
		t.Fatal(err)
	}
}

func (e *env) wantPinned(t *testing.T, what string, id digest.Digest, want bool) {
	t.Helper()
	if got := e.store.Pinned(id); got != want {
		t.Errorf("%s: Pinned returns %t, want %t", what, got, want)
	}
}

// TestPinnedImages pulls an image of pinned_images. Its records have the label of the CRI, with a mark, until the setting ends.
func TestPinnedImages(t *testing.T) {
	e := newEnv(t)
	i := e.image("pause")
	e.pull(t, pause, i, native, 0, "")
	e.pull(t, "registry.example/pause:2", e.image("other"), native, 0, "")
	for name, img := range e.Records(t) {
		want := ""
		// The CRI looks the image up by ID and tag. The record of the digest carries the tag's key.
		if img.Target.Digest == i.root.Digest {
			want = CRIPinnedValue
		}
		if got, mark := e.pinLabels(t, name); got != want || mark != want {
			t.Errorf("%s: got pinned label %q and mark %q, want %q", name, got, mark, want)
		}
	}
	e.wantPinned(t, "the setting", i.amd64.Config.Digest, false)

	e.restart()
	e.load(t)
	if got, mark := e.pinLabels(t, pause); got == "" || mark == "" {
		t.Errorf("after a restart: got pinned label %q and mark %q", got, mark)
	}
	e.restart()
	e.store.Configuration().PinnedImages = func() []string { return nil }
	e.load(t)
	for name := range e.Records(t) {
		if got, mark := e.pinLabels(t, name); got != "" || mark != "" {
			t.Errorf("after the end of the setting, %s: got pinned label %q and mark %q", name, got, mark)
		}
	}
}

// TestPinnedImagesEndWithAWrite changes pinned_images while the store runs. The next write of a record removes its labels.
func TestPinnedImagesEndWithAWrite(t *testing.T) {
	e := newEnv(t)
	i := e.image("pause")
	e.pull(t, pause, i, native, 0, "")
	e.store.Configuration().PinnedImages = func() []string { return nil }
	e.pull(t, pause, i, nativeToo, 1, "")
	for name := range e.Records(t) {
		if got, mark := e.pinLabels(t, name); got != "" || mark != "" {
			t.Errorf("%s: got pinned label %q and mark %q", name, got, mark)
		}
	}
}

// TestPinnedByOtherTool labels each record of an image as an operator does. The image is pinned until the label is removed, through all
// writes and restarts, and also if the label was there before pinned_images and stays after it.
func TestPinnedByOtherTool(t *testing.T) {
	for what, record := range map[string]func(image) string{
		"the tag":    func(image) string { return pause },
		"the digest": func(i image) string { return "registry.example/pause@" + i.root.Digest.String() },
		"the ID":     func(i image) string { return i.amd64.Config.Digest.String() },
	} {
		t.Run(what, func(t *testing.T) {
			e := newEnv(t)
			none := func() []string { return nil }
			setting := e.store.Configuration().PinnedImages
			e.store.Configuration().PinnedImages = none
			i := e.image("pause")
			id, name := i.amd64.Config.Digest, record(i)
			e.pull(t, pause, i, native, 0, "")
			e.wantPinned(t, "before", id, false)
			e.label(t, name, CRIPinnedLabel, CRIPinnedValue)
			e.sync(t, name)
			e.wantPinned(t, "the label", id, true)

			e.store.Configuration().PinnedImages = setting
			e.pull(t, pause, i, nativeToo, 1, "proof")
			e.pull(t, pause, i, foreign, 2, "proof")
			e.wantPinned(t, "pulls with the setting", id, true)
			e.restart()
			e.store.Configuration().PinnedImages = none
			e.load(t)
			e.wantPinned(t, "a restart without the setting", id, true)
			for other := range e.Records(t) {
				got, mark := e.pinLabels(t, other)
				if want := map[bool]string{true: CRIPinnedValue}[other == name]; got != want || mark != "" {
					t.Errorf("%s: got pinned label %q and mark %q, want %q and none", other, got, mark, want)
				}
			}

			e.label(t, name, CRIPinnedLabel, "")
			e.sync(t, name)
			e.wantPinned(t, "the label is removed", id, false)
		})
	}
}

// TestPinnedWithoutKey labels the record of an image ID that has no key. It is pinned, and is not removed.
func TestPinnedWithoutKey(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	id := i.amd64.Config.Digest
	e.label(t, id.String(), CRIPinnedLabel, CRIPinnedValue)
	for name := range e.Records(t) {
		if name != id.String() {
			if err := e.Images.Delete(e.ctx, name); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.restart()
	e.load(t)
	e.wantPinned(t, "an image without a key", id, true)
	removed, err := e.store.RemoveUntagged(e.ctx, id, time.Now().Add(time.Hour))
	if err != nil || removed {
		t.Errorf("RemoveUntagged returns %t, %v", removed, err)
	}
	e.label(t, id.String(), CRIPinnedLabel, "")
	e.sync(t, id.String())
	e.wantPinned(t, "the label is removed", id, false)
	if removed, err := e.store.RemoveUntagged(e.ctx, id, time.Now().Add(time.Hour)); err != nil || !removed {
		t.Errorf("RemoveUntagged without the label returns %t, %v", removed, err)
	}
}
