package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// pulled unpacks an image in snapshotter second, and returns the keys that a pull of a tag records for it.
func (h *hangingNode) pulled(t *testing.T, tag string) []imagepin.Entry {
	t.Helper()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", tag, nil)
	h.Write(h.ctx, t, blobs)
	h.Keep(h.ctx, t, img, nil)
	h.Unpack(h.ctx, t, img, "second")
	rt, err := h.config.Runtimes().Lookup("other")
	noError(t, err)
	byTag, err := newLook(h.Content).describe(h.ctx, img.Manifest, rt)
	noError(t, err)
	ref, err := reference.ParseNamed(tag)
	noError(t, err)
	byTag.Record, err = store.RecordName(ref, img.Manifest.Digest)
	noError(t, err)
	byTag.Key = imagepin.Key{Ref: tag, Target: rt.Target}
	byTag.Source, byTag.ReadyAt = imagepin.SourcePull, time.Now()
	byDigest := byTag
	byDigest.Ref = byTag.Record
	return []imagepin.Entry{byDigest, byTag}
}

// TestTagOfALostKey loses the snapshot of an image that was pulled for one target. The image is not unpacked for the default
// target: its tag is not a record of another tool. This holds at a start and after an event of the tag.
func TestTagOfALostKey(t *testing.T) {
	h := newHangingNode(t)
	close(h.responds)
	keys := h.pulled(t, goodRef)
	_, err := h.store.Put(h.ctx, "", keys...)
	noError(t, err)
	noError(t, h.Snapshotter("second").Remove(h.ctx, keys[0].ChainID.String()))

	loaded, err := h.load(h.ctx)
	noError(t, err)
	if len(loaded.lost) != 2 {
		t.Errorf("got lost keys %v, want 2", loaded.lost)
	}
	for _, img := range loaded.unkeyed {
		t.Errorf("the start adopts %s", img.Name)
	}
	unknown, err := h.sync(h.ctx, goodRef)
	noError(t, err)
	if unknown != nil {
		t.Errorf("the event of the tag adopts %s", unknown.Name)
	}

	// Another tool moves the tag to an image without keys. That one is adopted.
	moved := h.add(t, longRef, "first")
	_, err = h.Images.Update(h.ctx, images.Image{Name: goodRef, Target: moved.Manifest}, "target")
	noError(t, err)
	if unknown, err = h.sync(h.ctx, goodRef); err != nil || unknown == nil {
		t.Errorf("after the tag was moved: got record %v (%v), want %s for adoption", unknown, err, goodRef)
	}
}

// TestCheckDuringPull checks the node between the writes of a pull, and lets a pull end between the inventory of a check and
// its list of keys. Neither check has findings.
func TestCheckDuringPull(t *testing.T) {
	h := newHangingNode(t)
	close(h.responds)
	c := storeConfig(h.Node, h.config.Runtimes())
	var written func()
	c.Records = ctdtest.Records{Store: h.Images, Written: func() {
		if call := written; call != nil {
			written = nil
			call()
		}
	}}
	s := store.New(c)
	h.Reconciler = reconcilerOf(h.Node, c, s)
	want := func(when string, report health.Report, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", when, err)
		}
		for _, f := range report.Findings {
			t.Errorf("%s: found %s: %s", when, f.Subject, f.Problem)
		}
	}

	first := h.pulled(t, goodRef)
	checked := make(chan error, 1)
	var between health.Report
	written = func() {
		ctx, cancel := context.WithTimeout(h.ctx, 100*time.Millisecond)
		defer cancel()
		var err error
		between, err = h.Check(ctx, nil)
		checked <- err
	}
	_, err := s.Put(h.ctx, "", first...)
	noError(t, err)
	if err := <-checked; err == nil {
		t.Error("a check did not wait for the writes of a pull")
	}
	want("between the writes of a pull", between, nil)

	h.config.Checker = health.New(health.Config{
		// A check lists the leases of pins after its inventory, before it lists the keys.
		Leases: ctdtest.Leases{Manager: c.Leases, Before: ctdtest.On("List", func(string) error {
			_, err := s.Put(h.ctx, "", h.pulled(t, longRef)...)
			return err
		})},
		Images: s, Content: c.Content, Snapshotter: c.Snapshotter, Runtimes: c.Runtimes,
	})
	report, err := h.Check(h.ctx, nil)
	want("after the inventory", report, err)
	if want := 2 * len(first); report.Checked != want {
		t.Errorf("got %d keys checked, want %d", report.Checked, want)
	}
}
