package pull

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestDurableBeforeRecorded checks that an image is recorded after it was made durable, with its mark, that it is not recorded
// if that fails, and that a pull of an image that is ready does not make it durable again. Without the setting, it has no mark.
func TestDurableBeforeRecorded(t *testing.T) {
	n, ref := newLockedNode(t)
	config := &n.Puller.maker.config
	settings := *config.Settings()
	config.Settings = func() *Settings { return &settings }
	n.Puller.maker.unpacker.settings = config.Settings
	syncs, failure := 0, errors.New("input/output error")
	settings.Durable = func(_ context.Context, snapshotter string) (string, error) {
		if syncs++; snapshotter != "native" || len(n.store.Images()) > 0 {
			t.Errorf("%s is made durable with the images %+v recorded", snapshotter, n.store.Images())
		}
		if !n.HasSnapshot(t, "native", n.img.ChainID) {
			t.Error("made durable before the snapshot is committed")
		}
		return "boot", failure
	}
	made := func(tag string) (imagepin.Entry, error) {
		p, err := n.make(t, Locked{Ref: ref(tag), Root: n.img.Manifest, OnNode: true})
		return p.Entry, err
	}
	if _, err := made(":1"); !errors.Is(err, failure) || syncs != 1 || len(n.store.Images()) > 0 {
		t.Errorf("the disk fails: %v, %d syncs, images %+v", err, syncs, n.store.Images())
	}
	failure = nil
	for _, tag := range []string{":1", ":1", ":2"} {
		if e, err := made(tag); err != nil || e.Durable != "boot" || syncs != 2 {
			t.Errorf("%s: %+v, %v, %d syncs, want the mark and 2", tag, e, err, syncs)
		}
	}
	e, _ := n.store.Get(imagepin.Key{Ref: ref(":1").String(), Target: config.Runtimes().Default().Target})
	settings.Durable = nil
	err := n.Puller.maker.Unpack(n.Context(t), e, func(_ context.Context, e imagepin.Entry) error {
		if e.Durable != "" {
			t.Errorf("unpacked again without a sync: mark %q", e.Durable)
		}
		return errdefs.ErrAborted
	})
	if !errdefs.IsAborted(err) {
		t.Errorf("a repair: got %v, want the error of its record", err)
	}
}

// TestMarkWithoutSync checks that an image that is unpacked while syncs are off has no mark, as when the key is turned off, and that
// it gets one when they are on again.
func TestMarkWithoutSync(t *testing.T) {
	n := newMakerNode(t, pinned{}, 0)
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, img, "native")
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: "registry.example/app:v1", Target: n.maker.config.Runtimes().Default().Target}, Root: img.Manifest,
		Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID, Size: 1, Source: imagepin.SourcePull,
		Record: "registry.example/app@" + img.Manifest.Digest.String(), RecordTarget: img.Manifest,
	}
	for _, c := range []struct {
		source     imagepin.Source
		mark, want string
	}{
		{imagepin.SourcePull, "", ""}, {imagepin.SourcePull, "boot", "boot"}, {imagepin.SourcePull, "later", "boot"},
		{imagepin.SourceAdopted, "", "boot"}, {imagepin.SourcePull, "", ""},
	} {
		e.Source, e.Durable = c.source, c.mark
		_, err := n.store.Put(ctx, "", e)
		noError(t, err)
		record, err := n.Images.Get(ctx, e.Record)
		noError(t, err)
		label := imagepin.KeyLabelName(e.Key)
		recorded, err := imagepin.DecodeKeyLabel(label, record.Labels[label])
		noError(t, err)
		if now, _ := n.store.Get(e.Key); now.Durable != c.want || recorded.Durable != c.want {
			t.Errorf("put %q by %s: mark %q, recorded %q, want %q", c.mark, c.source, now.Durable, recorded.Durable, c.want)
		}
	}
}
