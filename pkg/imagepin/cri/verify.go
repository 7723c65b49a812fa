package cri

import (
	"context"
	"errors"

	"github.com/containerd/log"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// verifyImages calls the image verifiers for the images of a container that the rules verify before they run, and for those
// that the container would pin, as a pull does before it makes a pin. It fails with [imagepin.ImageVerificationFailed] if
// they do not accept one that a rule verifies, and if they cannot be called. The caller holds no lock.
func (s *containers) verifyImages(ctx context.Context, images []containerImage, t runtimeplatform.Target) error {
	for i, w := range images {
		var err error
		switch {
		case w.VerifyAs != nil:
			err = withTarget(s.Puller.VerifyRun(s.namespaced(ctx), w.VerifyAs, w.Root), t)
			images[i].Verified = err == nil && !w.unresolved
		case w.unresolved: // its use makes no pin
		case w.Scope != "" && w.Pin == nil:
			images[i].Verified, err = s.verifyNewPin(ctx, w)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withTarget adds a target to an error of the image verifiers, which is shared by calls for several.
func withTarget(err error, t runtimeplatform.Target) error {
	var shared *imagepin.Error
	if !errors.As(err, &shared) {
		return err
	}
	own := *shared
	own.Target = t.String()
	return &own
}

// verifyNewPin calls the image verifiers for an image that a container would pin. What they do not accept is used without a
// pin, as with stock containerd, which verifies pulls only. With the pin, every later pull in its scope would fail, whatever
// the tag resolves to. It fails if the verifiers cannot be called.
func (s *containers) verifyNewPin(ctx context.Context, w containerImage) (accepted bool, _ error) {
	err := s.Puller.Verify(s.namespaced(ctx), w.Ref, w.Root)
	var refused *imagepin.Error
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil || !errors.As(err, &refused) || refused.Reason != imagepin.ImageVerificationFailed:
		return false, err
	}
	log.G(ctx).WithError(err).WithFields(log.Fields{"ref": w.Ref.String(), "digest": w.Root.Digest, "scope": string(w.Scope)}).
		Warn("image verifiers do not accept the image on the node, it is not pinned")
	return false, nil
}
