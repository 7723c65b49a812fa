package decide

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// tagIsGone describes a tag that its registry does not have.
const tagIsGone = "the registry does not have the tag either"

// PinnedDigestGone returns the error for a verdict whose pinned digest is gone: [imagepin.PinnedDigestGone] (ErrNotFound). Its
// message includes the current digest of the tag. If that is not known, PinnedDigestGone asks the registry.
func (d *Decider) PinnedDigestGone(ctx context.Context, v Verdict, target string, err error) error {
	return goneError(v.Pin, target, d.tagNow(ctx, v), err)
}

func goneError(held *pin.Pin, target, now string, err error) error {
	by := ""
	if held.Claimer != "" {
		by = " by node " + held.Claimer
	}
	return &imagepin.Error{
		Reason: imagepin.PinnedDigestGone, Ref: held.Ref, Target: target, Class: errdefs.ErrNotFound, Err: err,
		Message: fmt.Sprintf("pinned to %s since %s in scope %s%s, but this digest is neither on the node nor in the registry; %s",
			held.Root.Digest, held.MadeAt.UTC().Format(time.RFC3339), held.Scope, by, now),
		Hint: refreshHint(held),
	}
}

// WithPin adds to an error for content that may be gone, see [resolve.MayBeGone], that a pin decides the digest, its age, and
// how to move it.
func WithPin(held pin.Pin, err error) error {
	why := fmt.Sprintf("%s (%s ago) to %s", whyPinned(held), duration.HumanDuration(time.Since(held.MadeAt)), held.Root.Digest)
	return explained(why, refreshHint(&held), err)
}

// explained adds to an error why the digest was decided, and a hint.
func explained(why, hint string, err error) error {
	var known *imagepin.Error
	if !errors.As(err, &known) {
		return err
	}
	e := *known
	e.Message = why + ", but it may be gone: " + e.Message
	e.Hint += "\n" + hint
	return &e
}

// refreshHint returns how to move a pin.
func refreshHint(held *pin.Pin) string {
	if held.By == pin.ByLock {
		return "To see the lock of the node: imagepin lock status\nTo go back to the lock before it: imagepin rollback"
	}
	if owner, ok := held.Scope.Owner(); ok {
		return inClusterHint("refresh", held.Scope.Namespace(), owner, "")
	}
	return fmt.Sprintf("To move the pin to the tag's current digest: imagepin refresh %s --scope %s\nTo remove the pin: imagepin pin rm %s --scope %s",
		held.Ref, held.Scope, held.Ref, held.Scope)
}

// inClusterHint returns the command of kubectl imagepin that changes the pins of an owner in the cluster. args are its
// arguments after the owner, each with a space before it. For an owner with revisions, the command would change the current
// one, so the hint names a pod of the revision.
func inClusterHint(command, namespace string, owner policy.Owner, args string) string {
	of, which := strings.ToLower(owner.Kind)+"/"+owner.Name, ""
	if owner.Revision != "" {
		of, which = "pod/NAME", ", with a pod of revision "+owner.Revision
	}
	return fmt.Sprintf("Run: kubectl imagepin %s --namespace %s %s%s%s", command, namespace, of, args, which)
}

// tagNow describes the current state of a pinned tag, for an error.
func (d *Decider) tagNow(ctx context.Context, v Verdict) string {
	now := v.Registry
	if now == nil {
		tag, err := reference.ParseNamed(v.Pin.Ref)
		if err != nil {
			return "the current digest of the tag is unknown: " + err.Error()
		}
		asked, err := d.resolve(ctx, Request{Ref: tag, Credential: v.Credential}, tag, "")
		switch {
		case errdefs.IsNotFound(err):
			return tagIsGone
		case err != nil:
			return "the current digest of the tag is unknown: the registry did not answer"
		}
		now = asked.Registry
	}
	if now.Digest == v.Root.Digest {
		return "the tag still resolves to this digest, but a part of the image is missing in the registry"
	}
	return "the tag now resolves to " + now.Digest.String()
}
