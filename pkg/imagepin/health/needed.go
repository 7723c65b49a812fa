package health

import (
	"context"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

// blob is a blob that a key or a pin needs.
type blob struct {
	Digest digest.Digest
	Size   int64 // bytes
	// Retained is the root digest of a pin that retains the blob. It is empty without one.
	Retained digest.Digest
}

// needed returns the recorded blobs that keys need or pins retain: indexes, manifests, configurations, and layers if
// they are kept.
func (c *Checker) needed(ctx context.Context, have *Inventory) ([]blob, error) {
	retained, err := c.retained(ctx)
	if err != nil {
		return nil, err
	}
	by := make(map[digest.Digest]digest.Digest)
	for d, root := range retained {
		blobs.AddBelow(by, root, have.refs, d)
	}
	for _, img := range c.config.Images.Images() {
		for _, e := range img.Entries {
			have.addBelow(by, e)
		}
	}
	all := make([]blob, 0, len(by))
	for d, retained := range by {
		all = append(all, blob{Digest: d, Size: have.files.sizes[d], Retained: retained})
	}
	slices.SortFunc(all, func(a, b blob) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return all, nil
}

// retained returns the blobs that pins retain, with the root digests of the pins.
func (c *Checker) retained(ctx context.Context) (map[digest.Digest]digest.Digest, error) {
	all, err := lease.Retained(ctx, c.config.Leases)
	if err != nil {
		return nil, err
	}
	found := make(map[digest.Digest]digest.Digest)
	for _, l := range all {
		resources, err := lease.Resources(ctx, c.config.Leases, l)
		if err != nil {
			return nil, err
		}
		for _, r := range resources {
			if d, err := digest.Parse(r.ID); err == nil && r.Type == upstream.ContentType {
				found[d] = digest.Digest(l.Labels[lease.RetainRootLabel])
			}
		}
	}
	return found, nil
}

// checkRetained adds blobs that a pin retains and that are damaged or cannot be read to a report, unless the repair of
// another finding replaces them.
func (c *Checker) checkRetained(have *Inventory, needed []blob, ref PinnedRef, r *Report) {
	retained := make(map[digest.Digest]digest.Digest)
	for _, b := range needed {
		if b.Retained != "" {
			retained[b.Digest] = b.Retained
		}
	}
	repaired := c.repaired(have, r)
	for _, p := range have.files.problems() {
		root, ok := retained[p.Digest]
		if !ok || repaired[p.Digest] {
			continue
		}
		problem := "a pin retains it, and its file " + p.Problem
		var e imagepin.Entry
		if ref != nil {
			e.Ref = ref(root)
		}
		r.Findings = append(r.Findings, Finding{
			Subject: p.Digest.String(), Problem: problem, Kind: DamagedBlob,
			Loss: Loss{Entry: e, Reason: problem, Blob: p.Digest, Unknown: p.Unknown},
		})
	}
}

// repaired returns the damaged blobs that repairs of the findings of a report replace. A key without a runtime handler is
// not repaired.
func (c *Checker) repaired(have *Inventory, r *Report) map[digest.Digest]bool {
	all := make(map[digest.Digest]bool)
	for _, f := range r.Findings {
		_, hasHandler := c.config.Runtimes().ForTarget(f.Loss.Entry.Target)
		switch {
		case f.Kind == DamagedBlob:
			all[f.Loss.Blob] = true
		case f.Kind == LostKey && hasHandler:
			content, _ := have.needed(f.Loss.Entry)
			for _, n := range content {
				all[n.Digest] = true
			}
		}
	}
	return all
}
