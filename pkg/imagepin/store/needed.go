package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// retainLeases selects the leases of what pins retain.
const retainLeases = "retain"

// Blob is a blob that a key or a pin needs.
type Blob struct {
	Digest digest.Digest
	Size   int64 // bytes
	// Retained is the digest of a pin that retains it; empty where none does.
	Retained digest.Digest
}

// Needed gives the blobs that there are records of and that keys need or pins
// retain: indexes, manifests, configurations, and layers where they are kept.
func (s *Store) Needed(ctx context.Context, have *Inventory) ([]Blob, error) {
	needed := make(map[digest.Digest]digest.Digest)
	var add func(d, retained digest.Digest)
	add = func(d, retained digest.Digest) {
		before, seen := needed[d]
		if _, recorded := have.blobs[d]; !recorded || seen && (before != "" || retained == "") {
			return
		}
		needed[d] = retained
		for _, below := range have.files.below[d] {
			add(below, retained)
		}
	}
	for _, img := range s.Images() {
		for _, e := range img.Entries {
			for _, d := range []digest.Digest{e.RecordTarget.Digest, e.Manifest, e.ImageID} {
				add(d, "")
			}
		}
	}
	retained, err := s.retained(ctx)
	if err != nil {
		return nil, err
	}
	for d, root := range retained {
		add(d, root)
	}
	all := make([]Blob, 0, len(needed))
	for d, retained := range needed {
		all = append(all, Blob{Digest: d, Size: have.files.sizes[d], Retained: retained})
	}
	slices.SortFunc(all, func(a, b Blob) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return all, nil
}

// retained are the blobs that leases hold for pins, and the digests of these.
func (s *Store) retained(ctx context.Context) (map[digest.Digest]digest.Digest, error) {
	all, err := s.Leases.List(ctx, fmt.Sprintf("labels.%q==%s", imagepin.LeaseLabel, retainLeases))
	if err != nil {
		return nil, fmt.Errorf("list what pins retain: %w", err)
	}
	found := make(map[digest.Digest]digest.Digest)
	for _, l := range all {
		resources, err := s.Leases.ListResources(ctx, leases.Lease{ID: l.ID})
		if err != nil {
			return nil, fmt.Errorf("list what lease %s retains: %w", l.ID, err)
		}
		for _, r := range resources {
			if d, err := digest.Parse(r.ID); err == nil && r.Type == "content" {
				found[d] = digest.Digest(l.Labels[imagepin.LabelPrefix+"retain.root"])
			}
		}
	}
	return found, nil
}

// CheckRetained adds to a report each blob that is damaged, that a pin retains, and
// that no finding is about yet. ref gives the reference of a pin of a digest.
func (s *Store) CheckRetained(have *Inventory, needed []Blob, ref func(root digest.Digest) string, r *Report) {
	for _, b := range needed {
		damage := have.files.damaged[b.Digest]
		if damage == nil || b.Retained == "" || slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return strings.Contains(f.Problem, b.Digest.String())
		}) {
			continue
		}
		problem := fmt.Sprintf("a pin retains it, and its file %s", damage.Problem)
		var e imagepin.Entry
		if ref != nil {
			e.Ref = ref(b.Retained)
		}
		r.Findings = append(r.Findings, Finding{
			Subject: b.Digest.String(), Problem: problem, store: s, entry: e, kind: broken,
			loss: Loss{Entry: e, Why: problem, Blob: b.Digest},
		})
	}
}
