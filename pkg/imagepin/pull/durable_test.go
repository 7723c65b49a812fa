package pull

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
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
	settings.Durable = func(_ context.Context, sn store.Snapshot) (string, error) {
		if syncs++; sn != (store.Snapshot{Snapshotter: "native", ChainID: n.img.ChainID}) || len(n.store.Images()) > 0 {
			t.Errorf("%+v is made durable with the images %+v recorded", sn, n.store.Images())
		}
		if !n.HasSnapshot(t, "native", n.img.ChainID) {
			t.Error("made durable before the snapshot is committed")
		}
		return "boot", failure
	}
	made := func(tag string) (imagepin.Entry, error) {
		p, err := n.make(t, Locked{Ref: ref(tag), Root: n.img.Manifest, From: FromNode})
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

// TestDiscard checks that what was unpacked is removed if the disk fails, so that the next attempt unpacks it again. What is older,
// what a key needs and what a container stands on stays.
func TestDiscard(t *testing.T) {
	failure := errors.New("input/output error")
	for name, c := range map[string]struct {
		prepare func(t *testing.T, n *lockedNode)
		old     bool
		stays   bool
	}{
		"unpacked now": {},
		"older":        {old: true, stays: true},
		"in use": {stays: true, prepare: func(t *testing.T, n *lockedNode) {
			_, err := n.Snapshotter("native").Prepare(n.Context(t), "container", n.img.ChainID.String())
			noError(t, err)
		}},
		"needed": {stays: true, prepare: func(t *testing.T, n *lockedNode) {
			e := imagepin.Entry{
				Key: imagepin.Key{Ref: "registry.example/other:v1", Target: n.Puller.maker.config.Runtimes().Default().Target}, Root: n.img.Manifest,
				Manifest: n.img.Manifest.Digest, ImageID: n.img.Config.Digest, ChainID: n.img.ChainID, Size: 1, Source: imagepin.SourcePull,
				Record: "registry.example/other@" + n.img.Manifest.Digest.String(), RecordTarget: n.img.Manifest,
			}
			_, err := n.store.Put(n.Context(t), "", e)
			noError(t, err)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newLockedNode(t)
			m := n.Puller.maker
			settings := *m.config.Settings()
			m.config.Settings = func() *Settings { return &settings }
			settings.Durable = func(context.Context, store.Snapshot) (string, error) { return "boot", failure }
			if c.prepare != nil {
				c.prepare(t, n)
			}
			e := imagepin.Entry{Key: imagepin.Key{Target: m.config.Runtimes().Default().Target}, ChainID: n.img.ChainID}
			since := time.Time{}
			if c.old {
				since = time.Now().Add(time.Hour)
			}
			if err := m.makeDurable(n.Context(t), &e, since); !errors.Is(err, failure) || e.Durable != "" {
				t.Errorf("got %v, mark %q", err, e.Durable)
			}
			if got := n.HasSnapshot(t, "native", n.img.ChainID); got != c.stays {
				t.Errorf("the snapshot stays: %t, want %t", got, c.stays)
			}
		})
	}
}

// TestSyncAdopted pulls an image that is ready without a mark. It is synced before it is recorded again, while it is not locked, and
// gets no mark. If the disk fails, it is not recorded. A pull that records nothing does not sync.
func TestSyncAdopted(t *testing.T) {
	n, ref := newLockedNode(t)
	m := n.Puller.maker
	settings := *m.config.Settings()
	m.config.Settings = func() *Settings { return &settings }
	made := func(tag string) (Pulled, error) {
		return n.make(t, Locked{Ref: ref(tag), Root: n.img.Manifest, From: FromNode})
	}
	if _, err := made(":1"); err != nil {
		t.Fatal(err)
	}
	syncs, failure := 0, errors.New("input/output error")
	settings.Durable = func(ctx context.Context, _ store.Snapshot) (string, error) {
		syncs++
		unlock, err := m.config.Locks.ForRemoval(ctx, ref("@"+n.img.Manifest.Digest.String()).String())
		if err != nil {
			return "", err
		}
		unlock()
		return "boot", failure
	}
	if _, err := made(":1"); err != nil || syncs != 0 {
		t.Errorf("nothing to record: %v, %d syncs", err, syncs)
	}
	if _, err := made(":2"); !errors.Is(err, failure) || len(n.store.ByRef(ref(":2").String())) > 0 {
		t.Errorf("the disk fails: %v", err)
	}
	failure = nil
	if p, err := made(":2"); err != nil || p.Durable != "" || syncs != 2 {
		t.Errorf("got %+v, %v, %d syncs", p, err, syncs)
	}
}
