package usage

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// blob is what containerd's records tell of a blob.
type blob struct {
	size      int64
	refs      []digest.Digest
	snapshots []snapshot
}

// snapshot identifies a committed snapshot.
type snapshot struct{ snapshotter, name string }

// need is what an image needs: blobs that exist, and its top snapshots.
type need struct {
	blobs     map[digest.Digest]bool
	snapshots map[snapshot]bool
}

func newNeed() need {
	return need{blobs: make(map[digest.Digest]bool), snapshots: make(map[snapshot]bool)}
}

// readContent reads the records of all blobs.
func (m *Meter) readContent(ctx context.Context) (map[digest.Digest]blob, error) {
	all := make(map[digest.Digest]blob)
	err := m.config.Content.Walk(ctx, func(i content.Info) error {
		b := blob{size: i.Size, refs: blobs.RefsOf(i).All()}
		for label, chainID := range i.Labels {
			if name, ok := strings.CutPrefix(label, upstream.SnapshotRef); ok {
				b.snapshots = append(b.snapshots, snapshot{name, chainID})
			}
		}
		all[i.Digest] = b
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("walk content: %w", err)
	}
	return all, nil
}

// add adds blobs and what they reference.
func (n need) add(all map[digest.Digest]blob, roots ...digest.Digest) {
	blobs.AddBelow(n.blobs, true, func(d digest.Digest) ([]digest.Digest, bool) {
		b, recorded := all[d]
		return b.refs, recorded
	}, roots...)
}

// addReferenced adds the snapshots that the blobs reference.
func (n need) addReferenced(all map[digest.Digest]blob) {
	for d := range n.blobs {
		for _, s := range all[d].snapshots {
			n.snapshots[s] = true
		}
	}
}

// needOf returns what an image needs.
func needOf(img store.Image, all map[digest.Digest]blob) need {
	n := newNeed()
	for _, e := range img.Entries {
		n.add(all, e.RecordTarget.Digest, e.Manifest, e.ImageID)
		if e.ChainID != "" {
			n.snapshots[snapshot{e.Target.Snapshotter, e.ChainID.String()}] = true
		}
	}
	return n
}

// keptByOthers returns what would stay if an image were removed: what image records without a key need, and what pins
// retain.
func (m *Meter) keptByOthers(ctx context.Context, images []store.Image, all map[digest.Digest]blob) (need, error) {
	kept := newNeed()
	own := make(map[string]bool)
	for _, img := range images {
		own[img.ID.String()] = true
		for _, e := range img.Entries {
			own[e.Record], own[e.Ref] = true, true
		}
	}
	records, err := m.config.Records.List(ctx)
	if err != nil {
		return need{}, fmt.Errorf("list image records: %w", err)
	}
	for _, r := range records {
		if !own[r.Name] {
			kept.add(all, r.Target.Digest)
		}
	}
	retained, err := lease.Retained(ctx, m.config.Leases)
	if err != nil {
		return need{}, err
	}
	held := make(map[snapshot]bool)
	for _, l := range retained {
		resources, err := lease.Resources(ctx, m.config.Leases, l)
		if err != nil {
			return need{}, err
		}
		for _, r := range resources {
			if name, ok := strings.CutPrefix(r.Type, upstream.SnapshotType); ok {
				held[snapshot{name, r.ID}] = true
			} else if r.Type == upstream.ContentType {
				kept.add(all, digest.Digest(r.ID))
			}
		}
	}
	kept.addReferenced(all)
	maps.Copy(kept.snapshots, held)
	return kept, nil
}
