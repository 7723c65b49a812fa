package reconcile

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
)

// Check compares the recorded with the actual state: the keys, and the images of other tools without a key. It writes
// nothing. ref may be nil.
func (r *Reconciler) Check(ctx context.Context, ref health.PinnedRef) (health.Report, error) {
	report, err := r.config.Checker.Check(ctx, ref)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report), nil
}

// DeepCheck is [Reconciler.Check] that also reads all content, see [health.Checker.DeepCheck].
func (r *Reconciler) DeepCheck(ctx context.Context, d health.DeepOptions) (health.Report, error) {
	report, err := r.config.Checker.DeepCheck(ctx, d)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report), nil
}

// LowestUnusable returns the chain ID of the lowest snapshot of an image that cannot be used, see [health.Checker.LowestUnusable].
func (r *Reconciler) LowestUnusable(ctx context.Context, e imagepin.Entry) (digest.Digest, error) {
	return r.config.Checker.LowestUnusable(ctx, e)
}

// withUnadopted adds the images of other tools without a key to a report.
func (r *Reconciler) withUnadopted(ctx context.Context, report health.Report) health.Report {
	var unexplained []images.Image
	for _, img := range report.Records {
		_, err := digest.Parse(img.Name) // image IDs are adopted with their references
		if err != nil && !r.config.Store.Accounted(img) {
			unexplained = append(unexplained, img)
		}
	}
	if len(unexplained) == 0 {
		return report
	}
	slices.SortFunc(unexplained, func(a, b images.Image) int { return strings.Compare(a.Name, b.Name) })
	ours, has := keyRecords(report.Records), r.unanswered.forReport(ctx)
	for _, img := range unexplained {
		if ours[img.Name] {
			continue
		}
		if why := r.adopter.unadopted(ctx, img, has); why != "" {
			report.Findings = append(report.Findings, health.Finding{Subject: img.Name, Problem: "it is not adopted: " + why, Kind: health.NotAdopted})
		}
	}
	return report
}

// warnAboutLayers checks the files of layers, and logs their problems. It does not repair them: containers of the image
// still run, and a pull that needs the layer fetches it again.
func warnAboutLayers(ctx context.Context, contents content.Store, have *health.Inventory) {
	problems, err := have.CheckLayers(ctx, contents)
	if err != nil {
		return // the process is stopping
	}
	for _, p := range problems {
		entry := log.G(ctx).WithField("digest", p.Digest)
		if p.Unknown {
			entry.Warn("layer may be damaged: its file " + p.Problem)
			continue
		}
		entry.Warnf("layer is damaged: its file %s; run imagepin check --repair to fetch it again", p.Problem)
	}
}

// keyRecords returns the names of the records of keys, ready or not. Findings about these are reported for the keys.
func keyRecords(all []images.Image) map[string]bool {
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
