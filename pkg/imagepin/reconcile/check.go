package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// Check compares what is recorded with what there is: the keys, and the images of other tools that have none. It writes
// nothing.
func (r *Reconciler) Check(ctx context.Context) (health.Report, error) {
	report, err := r.Checker.Check(ctx)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report)
}

// DeepCheck is [Reconciler.Check] that also reads all content, see [health.Checker.DeepCheck].
func (r *Reconciler) DeepCheck(ctx context.Context, d health.Deep) (health.Report, error) {
	report, err := r.Checker.DeepCheck(ctx, d)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report)
}

// withUnadopted adds the images of other tools that have no key to a report.
func (r *Reconciler) withUnadopted(ctx context.Context, report health.Report) (health.Report, error) {
	var unexplained []images.Image
	for _, img := range report.Records {
		_, err := digest.Parse(img.Name) // an image ID goes with its references
		if err != nil && !r.Store.Accounted(img) {
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
		why, err := r.unadopted(ctx, img)
		if err != nil {
			return report, err
		}
		if why != "" {
			report.Findings = append(report.Findings, health.Ignore(img.Name, "it is not adopted: "+why))
		}
	}
	return report, nil
}

// warnOfLayers looks at the files of layers, and says in the log which are damaged.
// Nothing is done about them: what has them runs, and a pull that needs one fetches
// it again.
func warnOfLayers(ctx context.Context, contents content.Store, have *health.Inventory) {
	damaged, err := have.DamagedLayers(ctx, contents)
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
func (r *Reconciler) unadopted(ctx context.Context, img images.Image) (why string, _ error) {
	ref, err := adoptable(img)
	if err != nil {
		return err.Error(), nil
	}
	found, refused := r.candidates(ctx, img, ref)
	if len(refused) > 0 {
		return refused[0].Error(), nil
	}
	if len(found) == 0 {
		return "the node has none of its platforms for a runtime handler", nil
	}
	var without []string
	for _, e := range found {
		unpacked, err := r.Store.HasSnapshot(ctx, e.Target.Snapshotter, e.ChainID)
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
