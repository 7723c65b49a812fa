package store

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// retainLeases selects the leases of what pins retain.
const retainLeases = "retain"

// Blob is a blob that a key or a pin needs.
type Blob struct {
	Digest digest.Digest
	Size   int64 // bytes
	// Retained tells that a pin retains it.
	Retained bool
}

// Needed gives the blobs that there are records of and that keys need or pins
// retain: indexes, manifests, configurations, and layers where they are kept.
func (s *Store) Needed(ctx context.Context, have *Inventory) ([]Blob, error) {
	needed := make(map[digest.Digest]bool)
	var add func(d digest.Digest, retained bool)
	add = func(d digest.Digest, retained bool) {
		before, seen := needed[d]
		if _, recorded := have.blobs[d]; !recorded || seen && (before || !retained) {
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
				add(d, false)
			}
		}
	}
	retained, err := s.retained(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range retained {
		add(d, true)
	}
	all := make([]Blob, 0, len(needed))
	for d, retained := range needed {
		all = append(all, Blob{Digest: d, Size: have.files.sizes[d], Retained: retained})
	}
	slices.SortFunc(all, func(a, b Blob) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return all, nil
}

// retained are the blobs that leases hold for pins.
func (s *Store) retained(ctx context.Context) ([]digest.Digest, error) {
	all, err := s.Leases.List(ctx, fmt.Sprintf("labels.%q==%s", imagepin.LeaseLabel, retainLeases))
	if err != nil {
		return nil, fmt.Errorf("list what pins retain: %w", err)
	}
	var found []digest.Digest
	for _, l := range all {
		resources, err := s.Leases.ListResources(ctx, leases.Lease{ID: l.ID})
		if err != nil {
			return nil, fmt.Errorf("list what lease %s retains: %w", l.ID, err)
		}
		for _, r := range resources {
			if d, err := digest.Parse(r.ID); err == nil && r.Type == "content" {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// CheckRetained gives a finding for each blob that is damaged, that a pin retains,
// and that no finding of the report is about.
func (s *Store) CheckRetained(ctx context.Context, have *Inventory, needed []Blob, r *Report) error {
	for _, b := range needed {
		damage := have.files.damaged[b.Digest]
		if damage == nil || !b.Retained || slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return strings.Contains(f.Problem, b.Digest.String())
		}) {
			continue
		}
		problem := fmt.Sprintf("a pin retains it, and its file %s", damage.Problem)
		e, err := s.origin(ctx, b.Digest)
		if err != nil {
			return err
		}
		r.Findings = append(r.Findings, Finding{
			Subject: b.Digest.String(), Problem: problem, store: s, entry: e, kind: broken,
			loss: Loss{Entry: e, Why: problem, Blob: b.Digest},
		})
	}
	return nil
}

// origin gives an entry that says no more of a blob than which repository it came
// from.
func (s *Store) origin(ctx context.Context, d digest.Digest) (imagepin.Entry, error) {
	info, err := s.Content.Info(ctx, d)
	if err != nil {
		return imagepin.Entry{}, err
	}
	var e imagepin.Entry
	for label, repos := range info.Labels {
		host, ok := strings.CutPrefix(label, labels.LabelDistributionSource+".")
		if !ok {
			continue
		}
		repo, _, _ := strings.Cut(repos, ",")
		named, err := reference.ParseNamed(host + "/" + repo)
		if err != nil {
			continue
		}
		ref, err := reference.WithDigest(named, d)
		if err == nil && (e.Ref == "" || ref.String() < e.Ref) {
			e.Ref = ref.String()
		}
	}
	return e, nil
}
