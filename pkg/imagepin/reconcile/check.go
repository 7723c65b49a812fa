package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Check compares what is recorded with what there is: the keys, and the images
// of other tools that have none. It writes nothing.
func Check(ctx context.Context, s *store.Store) (store.Report, error) {
	report, err := s.Check(ctx)
	if err != nil {
		return report, err
	}
	return withUnadopted(ctx, s, report)
}

// withUnadopted adds the images of other tools that have no key to a report.
func withUnadopted(ctx context.Context, s *store.Store, report store.Report) (store.Report, error) {
	var unexplained []images.Image
	for _, img := range report.Records {
		_, err := digest.Parse(img.Name) // an image ID goes with its references
		if err != nil && !s.Explained(img) {
			unexplained = append(unexplained, img)
		}
	}
	if len(unexplained) == 0 {
		return report, nil
	}
	slices.SortFunc(unexplained, func(a, b images.Image) int { return strings.Compare(a.Name, b.Name) })
	ours := recorded(report.Records)
	for _, img := range unexplained {
		if ours[img.Name] {
			continue
		}
		why, err := unadopted(ctx, s, img)
		if err != nil {
			return report, err
		}
		if why != "" {
			report.Findings = append(report.Findings, store.Unclaimed(img.Name, "it is not adopted: "+why))
		}
	}
	return report, nil
}

// warnOfLayers looks at the files of layers, and says in the log which are damaged.
// Nothing is done about them: what has them runs, and a pull that needs one fetches
// it again.
func warnOfLayers(ctx context.Context, s *store.Store, have *store.Inventory) {
	damaged, err := have.DamagedLayers(ctx, s.Content)
	if err != nil {
		return // the process ends
	}
	for _, d := range damaged {
		log.G(ctx).WithField("digest", d.Digest).Warnf("a layer on the node is damaged: its file %s; imagepin check --repair fetches it again", d.Problem)
	}
}

// recorded gives the records that are those of keys, ready or not: what is the
// matter with them is said of the keys.
func recorded(all []images.Image) map[string]bool {
	names := make(map[string]bool)
	for _, img := range all {
		for name, value := range img.Labels {
			if !imagepin.IsKeyLabel(name) {
				continue
			}
			names[img.Name] = true
			if e, err := imagepin.DecodeKeyLabel(name, value); err == nil {
				names[e.Ref] = true
			}
		}
	}
	return names
}

// unadopted says why an image of another tool has no key. It says nothing where
// it is about to have one.
func unadopted(ctx context.Context, s *store.Store, img images.Image) (why string, _ error) {
	ref, err := adoptable(img)
	if err != nil {
		return err.Error(), nil
	}
	found, refused := candidates(ctx, s, img, ref)
	if len(refused) > 0 {
		return refused[0].Error(), nil
	}
	if len(found) == 0 {
		return "the node has none of its platforms for a runtime handler", nil
	}
	var without []string
	for _, e := range found {
		unpacked, err := s.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
		if err != nil {
			return err.Error(), nil
		}
		if unpacked {
			return "", nil
		}
		without = append(without, e.Target.Snapshotter)
	}
	slices.Sort(without)
	return "it is not unpacked in " + strings.Join(slices.Compact(without), ", "), nil
}

// adoptable gives the reference that a record's name is, where a pod could use
// it. An image ID is none: it goes with its references.
func adoptable(img images.Image) (reference.Named, error) {
	if _, err := digest.Parse(img.Name); err == nil {
		return nil, errors.New("its name is an image ID")
	}
	ref, err := reference.ParseDockerRef(img.Name)
	if err != nil {
		return nil, fmt.Errorf("its name is not a reference: %w", err)
	}
	if ref.String() != img.Name {
		return nil, fmt.Errorf("its name is not a normalized reference, which would be %s", ref)
	}
	// A record can be made to target anything; a digest means what it says.
	if d, ok := ref.(reference.Digested); ok && d.Digest() != img.Target.Digest {
		return nil, fmt.Errorf("it targets %s, not the digest of its name", img.Target.Digest)
	}
	return ref, nil
}

// Mend repairs what a check has found, as it is done behind the service. What
// cannot be made ready from what is here is fetched by its digest; where that
// fails too the key is dropped, so that the image is not taken for present.
func (r *Reconciler) Mend(ctx context.Context, f store.Finding) (store.Repair, error) {
	return f.Mend(ctx, func(ctx context.Context, loss store.Loss) (store.Repair, error) {
		if loss.Blob != "" {
			if err := r.Maker.RepairBlob(ctx, loss.Entry, loss.Blob); err != nil {
				return "", err
			}
			return store.Fetched, nil
		}
		if loss.Hollow {
			err := lease.With(ctx, r.Leases, lease.Use, func(ctx context.Context) error { return r.Store.RemoveHollow(ctx, loss.Entry) })
			if err != nil {
				return "", err
			}
			loss.Mendable = true
		}
		if loss.Mendable {
			if restored, err := r.unpack(ctx, loss); err == nil {
				if !restored {
					return store.Unwanted, nil
				}
				return store.Unpacked, nil
			}
		}
		done, err := r.Puller.Remake(ctx, loss.Entry)
		if err != nil {
			return "", err
		}
		return repairs[done], nil
	})
}

// repairs are what a pull does, as repairs.
var repairs = map[pull.Outcome]store.Repair{
	pull.Fetched: store.Fetched, pull.Unpacked: store.Unpacked,
	pull.Recorded: store.Recorded, pull.UpToDate: store.Recorded,
}
