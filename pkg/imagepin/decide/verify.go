package decide

import (
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// verifyAs returns the reference for which the image verifiers have to accept what a container runs; nil if the rules verify
// pulls only. It is the reference by which the pod names the image. If its rule does not ask for it and no pin can apply to
// it, for example because the pod names an image ID, it is one of the references that the image has on the node.
func (d *Decider) verifyAs(u Use, used Used) reference.Named {
	if !d.policy().VerifiesRuns() {
		return nil
	}
	verifies := func(ref reference.Named) bool { return d.Rule(ref.String()).Verify == policy.VerifyRun }
	switch {
	case u.Ref != nil && verifies(u.Ref):
		return u.Ref
	case used.Ref != nil:
		return nil
	case verifies(u.Image):
		return u.Image
	}
	all := d.images.ByRoot(used.Root.Digest)
	slices.SortFunc(all, func(a, b imagepin.Entry) int { return strings.Compare(a.Ref, b.Ref) })
	for _, e := range all {
		if ref, err := reference.ParseNamed(e.Ref); err == nil && verifies(ref) {
			return ref
		}
	}
	return nil
}

// checkUnknownVerified fails with [imagepin.ImageVerificationFailed] (ErrPermissionDenied) if the rules verify an image that
// imagepin does not know, and so not its digest. name is what the caller named it by.
func (d *Decider) checkUnknownVerified(name string) error {
	ref, err := imagepin.ParseReference(name)
	if err != nil || isImageID(name) {
		if !d.policy().VerifiesRuns() {
			return nil
		}
	} else if d.Rule(ref.String()).Verify != policy.VerifyRun {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.ImageVerificationFailed, Ref: name, Class: errdefs.ErrPermissionDenied,
		Message: "a rule verifies this image before it runs, and its digest is not known on this node",
		Hint:    "Pull it, and name it by its reference.",
	}
}
