package store_test

import (
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

func TestRemoveFreesOneSnapshotter(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	chain, config := i.amd64.ChainID, i.amd64.Config.Digest

	// Another key needs the snapshot, so nothing is freed.
	e.remove(t, imagepin.Key{Ref: tag, Target: native})
	if !e.HasSnapshot(t, "first", chain) || e.Records(t)[tag].Name == "" {
		t.Error("the removal freed content of another key")
	}
	e.remove(t, imagepin.Key{Ref: repo + "@" + i.root.Digest.String(), Target: native})
	if e.HasSnapshot(t, "first", chain) || !e.HasSnapshot(t, "second", chain) {
		t.Errorf("got snapshots: first %v, second %v, want only the second", e.HasSnapshot(t, "first", chain), e.HasSnapshot(t, "second", chain))
	}
	info, err := e.Content.Info(e.ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	if info.Labels[snapshotKey+"first"] != "" || info.Labels[snapshotKey+"second"] != chain.String() {
		t.Errorf("labels of the configuration: got %v, want only the second snapshotter", info.Labels)
	}
	e.wantSound(t)
	e.remove(t, keysOf(entries(tag, i, nativeToo, 1))...)
	e.WantEmpty(t)
	e.remove(t, keysOf(entries(tag, i, nativeToo, 1))...) // a second removal has no effect
}

func TestRemoveUnknownKey(t *testing.T) {
	e := newEnv(t)
	change, err := e.store.Remove(e.ctx, imagepin.Key{Ref: tag, Target: native})
	if err != nil || change.Wrote || e.records.writes != 0 {
		t.Errorf("got change %+v, %v, %d writes, want none", change, err, e.records.writes)
	}
}

// TestRemoveKeepsMovedTag checks that a removal does not delete a tag that another tool moved.
func TestRemoveKeepsMovedTag(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	ctx, done := e.Lease(t)
	e.place(ctx, t, b, native)
	if _, err := e.Images.Update(e.ctx, images.Image{Name: tag, Target: b.root}, "target"); err != nil {
		t.Fatal(err)
	}
	done()
	e.remove(t, keysOf(entries(tag, a, native, 0))...)
	e.wantRecords(t, map[string]digest.Digest{tag: b.root.Digest})
	if !e.HasBlob(t, b.amd64.Manifest.Digest) || e.HasBlob(t, a.amd64.Manifest.Digest) {
		t.Error("the node does not have exactly the content of the tag")
	}
}

// TestRemoveImageThatAnotherToolKeeps checks that a removal frees the snapshot even if another tool keeps the
// configuration, which references the snapshot, and that it writes no label otherwise.
func TestRemoveImageThatAnotherToolKeeps(t *testing.T) {
	for name, kept := range map[string]bool{"kept": true, "not kept": false} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			e.pull(t, tag, i, native, 0, "")
			if kept {
				l, err := e.Leases.Create(e.ctx, leases.WithID("other tool"))
				if err != nil {
					t.Fatal(err)
				}
				if err := e.Leases.AddResource(e.ctx, l, leases.Resource{ID: i.amd64.Config.Digest.String(), Type: "content"}); err != nil {
					t.Fatal(err)
				}
			} else {
				e.store.Configuration().Content = ctdtest.Content{Store: e.Content, Before: ctdtest.Fail("Update", errors.New("a label is written"))}
			}
			e.remove(t, keysOf(entries(tag, i, native, 0))...)
			if got := e.HasBlob(t, i.amd64.Config.Digest); got != kept {
				t.Errorf("the configuration exists: %v, want %v", got, kept)
			}
			if e.HasSnapshot(t, "first", i.amd64.ChainID) {
				t.Error("the snapshot exists, want none")
			}
		})
	}
}
