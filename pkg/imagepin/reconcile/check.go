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

// Check compares the recorded with the actual state: the keys, and the images of other tools without a key. It writes
// nothing.
func (r *Reconciler) Check(ctx context.Context) (health.Report, error) {
	report, err := r.config.Checker.Check(ctx)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report)
}

// DeepCheck is [Reconciler.Check] that also reads all content, see [health.Checker.DeepCheck].
func (r *Reconciler) DeepCheck(ctx context.Context, d health.DeepOptions) (health.Report, error) {
	report, err := r.config.Checker.DeepCheck(ctx, d)
	if err != nil {
		return report, err
	}
	return r.withUnadopted(ctx, report)
}

// withUnadopted adds the images of other tools without a key to a report.
func (r *Reconciler) withUnadopted(ctx context.Context, report health.Report) (health.Report, error) {
	var unexplained []images.Image
	for _, img := range report.Records {
		_, err := digest.Parse(img.Name) // image IDs are adopted with their references
		if err != nil && !r.config.Store.Accounted(img) {
			unexplained = append(unexplained, img)
		}
	}
	if len(unexplained) == 0 {
		return report, nil
	}
	slices.SortFunc(unexplained, func(a, b images.Image) int { return strings.Compare(a.Name, b.Name) })
	ours, has := keyRecords(report.Records), r.forReport(ctx)
	for _, img := range unexplained {
		if ours[img.Name] {
			continue
		}
		why, err := r.unadopted(ctx, img, has)
		if err != nil {
			return report, err
		}
		if why != "" {
			report.Findings = append(report.Findings, health.Ignore(img.Name, "it is not adopted: "+why))
		}
	}
	return report, nil
}

// warnAboutLayers checks the files of layers, and logs the damaged ones. It does not repair them: containers of the
// image still run, and a pull that needs the layer fetches it again.
func warnAboutLayers(ctx context.Context, contents content.Store, have *health.Inventory) {
	damaged, err := have.DamagedLayers(ctx, contents)
	if err != nil {
		return // the process is stopping
	}
	for _, d := range damaged {
		log.G(ctx).WithField("digest", d.Digest).Warnf("layer is damaged: its file %s; run imagepin check --repair to fetch it again", d.Problem)
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

// forReport looks for snapshots in the snapshotters. It waits only once for one that does not respond.
func (r *Reconciler) forReport(ctx context.Context) hasSnapshot {
	silent := make(map[string]error)
	return func(snapshotter string, chainID digest.Digest) (here bool, _ error) {
		if err := silent[snapshotter]; err != nil {
			return false, err
		}
		err := within(ctx, r.answerTimeout, func(ctx context.Context) (err error) {
			here, err = r.config.Store.HasSnapshot(ctx, snapshotter, chainID)
			return err
		})
		if errors.Is(err, errSilent) {
			err = fmt.Errorf("snapshotter %s does not respond", snapshotter)
			silent[snapshotter] = err
		}
		return here, err
	}
}

// unadopted returns why an image of another tool has no key. It returns "" if the image is about to get one.
func (r *Reconciler) unadopted(ctx context.Context, img images.Image, has hasSnapshot) (why string, _ error) {
	ref, err := adoptable(img)
	if err != nil {
		return err.Error(), nil
	}
	found, refused := r.candidates(ctx, img, ref)
	if len(refused) > 0 {
		return refused[0].Error(), nil
	}
	if len(found) == 0 {
		return "the node has no content for the platforms of its runtime handlers", nil
	}
	var without []string
	for _, e := range found {
		unpacked, err := has(e.Target.Snapshotter, e.ChainID)
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

// adoptable returns the reference that a record's name is, if a pod can use it. It fails for an image ID, which is
// adopted with its references.
func adoptable(img images.Image) (reference.Named, error) {
	if _, err := digest.Parse(img.Name); err == nil {
		return nil, errors.New("its name is an image ID")
	}
	ref, err := reference.ParseDockerRef(img.Name)
	if err != nil {
		return nil, fmt.Errorf("its name is not a reference: %w", err)
	}
	if ref.String() != img.Name {
		return nil, fmt.Errorf("its name is not a normalized reference; use %s", ref)
	}
	// A record can target any digest, but a reference with a digest must target that digest.
	if d, ok := ref.(reference.Digested); ok && d.Digest() != img.Target.Digest {
		return nil, fmt.Errorf("it targets %s, not the digest in its name", img.Target.Digest)
	}
	return ref, nil
}
