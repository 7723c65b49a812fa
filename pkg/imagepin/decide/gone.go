package decide

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// tagIsGone is what a tag means that its registry does not have.
const tagIsGone = "nothing: the registry has no such tag either"

// Gone returns the error of a verdict whose pinned digest cannot be had, for a target: [imagepin.PinnedDigestGone]
// (ErrNotFound). It names what the tag means now, and asks the registry where that is not known.
func (d *Decider) Gone(ctx context.Context, v Verdict, target string, err error) error {
	return goneError(v.Pin, target, d.tagNow(ctx, v), err)
}

func goneError(held *pin.Pin, target, now string, err error) error {
	return &imagepin.Error{
		Reason: imagepin.PinnedDigestGone, Ref: held.Ref, Target: target, Class: errdefs.ErrNotFound, Err: err,
		Message: fmt.Sprintf("it is pinned to %s since %s in scope %s, which is neither on the node nor in the registry; the tag means %s",
			held.Root.Digest, held.MadeAt.UTC().Format(time.RFC3339), held.Scope, now),
		Hint: fmt.Sprintf("To run what the tag means now: imagepin refresh %s --scope %s\nTo remove the pin: imagepin pin rm %s --scope %s",
			held.Ref, held.Scope, held.Ref, held.Scope),
	}
}

// tagNow says what the tag of a pinned verdict means, for an error.
func (d *Decider) tagNow(ctx context.Context, v Verdict) string {
	now := v.Registry
	if now == nil {
		tag, err := reference.ParseNamed(v.Pin.Ref)
		if err != nil {
			return "not known: " + err.Error()
		}
		asked, err := d.ask(ctx, Question{Ref: tag, Credential: v.Credential}, tag, "")
		switch {
		case errdefs.IsNotFound(err):
			return tagIsGone
		case err != nil:
			return "not known: the registry did not answer"
		}
		now = asked.Registry
	}
	if now.Digest == v.Root.Digest {
		return "still this digest, but a part of it is missing there"
	}
	return now.Digest.String()
}
