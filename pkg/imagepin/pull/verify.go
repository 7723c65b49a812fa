package pull

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Verify calls the image verifier plugins with a reference and its digest, as a pull does, without a pull. It merges
// concurrent identical calls. The caller must not hold a lock: a verifier is a program that can take as long as its timeout.
//
// It fails with ImageVerificationFailed (ErrPermissionDenied) if a verifier blocks the image or cannot verify it.
func (p *Puller) Verify(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error {
	_, err := p.verdicts.Do(ctx, ref.String()+"\x00"+root.Digest.String(), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, p.maker.verify(ctx, ref, root)
	})
	return err
}

// VerifyRun is Verify for an image that a container is created from, if a rule verifies these. It does not call the
// verifiers if they have accepted the digest for the reference, in a pull or for a container, and run the same programs
// since. What they refuse is not kept.
func (p *Puller) VerifyRun(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error {
	image := acceptedImage{ref.String(), root.Digest, versionOf(ctx, p.maker.config.Settings().Verifiers)}
	if p.maker.accepted.has(image) {
		return nil
	}
	// A call that began before a verifier was replaced has another key.
	key := strings.Join([]string{image.ref, image.digest.String(), image.version}, "\x00")
	_, err := p.verdicts.Do(ctx, key, func(ctx context.Context) (struct{}, error) { return struct{}{}, p.maker.verify(ctx, ref, root) })
	return err
}

// verify calls the image verifiers. It keeps what they accept if a rule verifies containers.
func (m *Maker) verify(ctx context.Context, ref reference.Named, root ocispec.Descriptor) error {
	verifiers := m.config.Settings().Verifiers
	if len(verifiers) == 0 || m.config.Pins.Rule(ref.String()).Verify != policy.VerifyRun {
		return verify(ctx, verifiers, ref.String(), root)
	}
	image := acceptedImage{ref.String(), root.Digest, versionOf(ctx, verifiers)}
	err := verify(ctx, verifiers, ref.String(), root)
	if err == nil {
		m.accepted.keep(image, versionOf(ctx, verifiers))
	}
	return err
}

// verify calls every image verifier plugin with the reference and the descriptor from the registry, as containerd's
// transfer service does (see package upstream). The pull fails if a verifier blocks the image or returns an
// error.
func verify(ctx context.Context, verifiers map[string]imageverifier.ImageVerifier, ref string, root ocispec.Descriptor) error {
	for _, name := range slices.Sorted(maps.Keys(verifiers)) {
		judgement, err := verifiers[name].VerifyImage(ctx, ref, root)
		if err == nil && judgement.OK {
			log.G(ctx).WithField("verifier", name).WithField("ref", ref).WithField("digest", root.Digest).Debug("image verifier allowed pull")
			continue
		}
		e := &imagepin.Error{
			Reason: imagepin.ImageVerificationFailed, Ref: ref, Class: errdefs.ErrPermissionDenied, Err: err,
			Hint: "Sign the image, or change the policy of the image verifier plugins in containerd's image verifier directory.",
		}
		if err == nil {
			e.Message = fmt.Sprintf("image verifier %s blocked %s: %s", name, root.Digest, judgement.Reason)
		} else {
			e.Message = fmt.Sprintf("image verifier %s could not verify %s", name, root.Digest)
		}
		return e
	}
	return nil
}
