package decide

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// UndoPin moves the pin of a tag back to the digest before its last change, as [Decider.SetPin] does. The pin keeps whether
// it retains its content. Its current digest becomes the last one of its history, so a second undo returns to it. previous
// is the digest that the tag was pinned to.
//
// It fails as SetPin does, with UnknownPin (ErrNotFound) and NoEarlierDigest (ErrFailedPrecondition), and with
// [pin.ErrChanged] (ErrAborted) if the pin is removed or moved meanwhile.
func (d *Decider) UndoPin(ctx context.Context, ref reference.Named, scope policy.Scope, c resolve.Credential) (held pin.Pin, previous digest.Digest, _ error) {
	id := pin.ID{Scope: scope, Ref: ref.String()}
	read, ok := d.pins.Get(id)
	if !ok {
		return pin.Pin{}, "", pin.Unknown(id)
	}
	if len(read.History) == 0 {
		return pin.Pin{}, "", &imagepin.Error{
			Reason: imagepin.NoEarlierDigest, Ref: ref.String(), Class: errdefs.ErrFailedPrecondition,
			Message: "its pin in scope " + string(scope) + " has had no other digest",
			Hint:    "To pin it to another digest, run: imagepin pin set",
		}
	}
	held, previous, err := d.SetPin(ctx, SetPin{
		Ref: ref, Scope: scope, Digest: read.History[len(read.History)-1].Digest, Credential: c,
		Force: true, // it was pinned before
		read:  &read,
	})
	if err != nil {
		return held, previous, fmt.Errorf("undo the pin of %s: %w", ref, err)
	}
	return held, previous, nil
}
