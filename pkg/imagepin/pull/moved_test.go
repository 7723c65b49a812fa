package pull

import (
	"context"
	"testing"
	"time"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
)

// movingTag is a node with two unpacked images that a tag can resolve to.
type movingTag struct {
	*makerNode
	t            *testing.T
	ref          reference.Named
	older, newer ctdtest.Image
	blobs        ctdtest.Blobs
	leased       context.Context
}

func newMovingTag(t *testing.T) *movingTag {
	t.Helper()
	n, blobs := newMakerNode(t, pinned{}, 0), ctdtest.Blobs{}
	m := &movingTag{
		makerNode: n, t: t, blobs: blobs,
		older: blobs.Image("linux/amd64", "older", nil), newer: blobs.Image("linux/amd64", "newer", nil),
	}
	var err error
	m.ref, err = reference.ParseNamed("registry.example/app:v1")
	noError(t, err)
	ctx, done := n.Lease(t)
	t.Cleanup(done)
	m.leased = ctx
	n.Write(ctx, t, blobs)
	for _, img := range []ctdtest.Image{m.older, m.newer} {
		n.Unpack(ctx, t, img, "native")
	}
	return m
}

// entries returns the keys of a pull: by digest, and by tag.
func (m *movingTag) entries(img ctdtest.Image) (byDigest, byTag imagepin.Entry) {
	m.t.Helper()
	rt := m.maker.config.Runtimes().Default()
	e, _, err := DescribeLocal(m.Context(m.t), m.Content, img.Manifest, rt)
	if err != nil {
		m.t.Fatal(err)
	}
	e.Record = "registry.example/app@" + img.Manifest.Digest.String()
	e.Key = imagepin.Key{Ref: e.Record, Target: rt.Target}
	e.Root, e.RecordTarget, e.Source = img.Manifest, img.Manifest, imagepin.SourcePull
	byTag = e
	byTag.Ref = m.ref.String()
	return e, byTag
}

// pull records what a pull of the tag records.
func (m *movingTag) pull(img ctdtest.Image) {
	m.t.Helper()
	byDigest, byTag := m.entries(img)
	if _, err := m.store.Put(m.Context(m.t), "", byDigest, byTag); err != nil {
		m.t.Fatal(err)
	}
}

func (m *movingTag) remove(img ctdtest.Image) {
	m.t.Helper()
	byDigest, byTag := m.entries(img)
	if _, err := m.store.Remove(m.Context(m.t), byDigest.Key, byTag.Key); err != nil {
		m.t.Fatal(err)
	}
}

// wantTag checks the digest of the tag and of its record.
func (m *movingTag) wantTag(want ctdtest.Image) {
	m.t.Helper()
	_, byTag := m.entries(want)
	if got, _ := m.store.Get(byTag.Key); got.Root.Digest != want.Manifest.Digest {
		m.t.Errorf("the tag has digest %q, want %s", got.Root.Digest, want.Manifest.Digest)
	}
	if got := m.Records(m.t)[m.ref.String()].Target.Digest; got != want.Manifest.Digest {
		m.t.Errorf("the record of the tag has digest %q, want %s", got, want.Manifest.Digest)
	}
}

// TestRepairOfAMovedTag repairs a lost key whose tag a pull has moved, before or during the repair. The tag keeps the
// digest of the pull.
func TestRepairOfAMovedTag(t *testing.T) {
	for _, when := range []string{"before", "during"} {
		t.Run(when, func(t *testing.T) {
			m := newMovingTag(t)
			m.pull(m.older)
			_, lost := m.entries(m.older)
			if when == "before" {
				m.pull(m.newer)
			} else {
				m.recording.before = func() { m.pull(m.newer) }
			}
			if outcome, err := m.maker.repair(m.Context(t), lost, nil); outcome != Unneeded || err != nil {
				t.Errorf("got %q, %v, want %q", outcome, err, Unneeded)
			}
			m.wantTag(m.newer)
		})
	}
}

// TestRepairOfARemovedImage repairs a lost key of an image that was removed. It stays removed.
func TestRepairOfARemovedImage(t *testing.T) {
	m := newMovingTag(t)
	m.pull(m.older)
	_, lost := m.entries(m.older)
	m.remove(m.older)
	if outcome, err := m.maker.repair(m.Context(t), lost, nil); outcome != Unneeded || err != nil {
		t.Errorf("got %q, %v, want %q", outcome, err, Unneeded)
	}
	if left := m.Records(t); len(left) > 0 {
		t.Errorf("got records %v, want none", left)
	}
}

// TestRepairOfALostKey repairs a key that is recorded and not ready. It is ready under its own reference afterwards.
func TestRepairOfALostKey(t *testing.T) {
	m := newMovingTag(t)
	m.pull(m.older)
	_, lost := m.entries(m.older)
	if err := m.Content.Delete(m.Context(t), lost.Manifest); err != nil {
		t.Fatal(err)
	}
	if evicted, err := m.store.EvictBlob(m.Context(t), lost.Manifest); len(evicted) != 2 || err != nil {
		t.Fatalf("got evicted keys %v, %v, want 2", evicted, err)
	}
	m.Write(m.leased, t, m.blobs)
	if outcome, err := m.maker.repair(m.Context(t), lost, nil); outcome != Unpacked || err != nil {
		t.Errorf("got %q, %v, want %q", outcome, err, Unpacked)
	}
	m.wantTag(m.older)
}

// TestMakeReadyOfAMovedTag makes a digest ready that was decided for a tag before a pull moved the tag. The tag keeps the
// digest of the pull, and the older one is ready under its digest.
func TestMakeReadyOfAMovedTag(t *testing.T) {
	m := newMovingTag(t)
	m.recording.before = func() { m.pull(m.newer) }
	p := NewPuller(nil, m.maker, unobserved{}, nil)
	made, err := p.MakeReady(m.Context(t), Need{Ref: m.ref, Root: m.older.Manifest, Runtime: m.maker.config.Runtimes().Default()})
	if err != nil {
		t.Fatal(err)
	}
	m.wantTag(m.newer)
	byDigest, _ := m.entries(m.older)
	if _, ready := m.store.Get(byDigest.Key); !ready || made.Key != byDigest.Key {
		t.Errorf("got key %s, ready: %t, want %s", made.Key, ready, byDigest.Key)
	}
}

// TestPullOfAReadyImageIsLater pulls an image that is ready. Its key loses the tag during the pull, because another tool has
// moved the tag before it. The key that the pull records is ready since the pull, and not since the image was made ready
// first: the later of two keys decides what the tag's record targets.
func TestPullOfAReadyImageIsLater(t *testing.T) {
	m := newMovingTag(t)
	m.pull(m.older)
	m.recording.before = func() { m.pull(m.newer) }
	began := time.Now()
	job := Job{Verdict: decide.Verdict{Ref: m.ref, Root: m.older.Manifest, Proof: "proof"}, Runtime: m.maker.config.Runtimes().Default()}
	made, outcome, err := m.maker.Make(m.Context(t), job)
	if err != nil || outcome != Recorded || made.ReadyAt.Before(began) {
		t.Errorf("got %q, %v, ready at %s, want recorded after %s", outcome, err, made.ReadyAt, began)
	}
	m.wantTag(m.older)
}
