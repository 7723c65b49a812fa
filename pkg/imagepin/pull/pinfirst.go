package pull

import (
	"context"
	"fmt"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// pinRequest is a pin that the first use of a reference makes.
type pinRequest struct {
	id pin.ID
	// namespace is the Kubernetes namespace of the pod that the pin is made for.
	namespace string
	retain    bool
	// release gives up the room that is kept for what the pin retains; nil before
	// there is any.
	release func()
}

// pinnedElsewhere says that a reference was pinned to another digest while its
// pull was under way.
type pinnedElsewhere struct{ pin pin.Pin }

func (e *pinnedElsewhere) Error() string {
	return fmt.Sprintf("%s was pinned to %s meanwhile", e.pin.Ref, e.pin.Root.Digest)
}

// pinFirst makes the pin of a job that is the first use of its reference. e is
// what is known of the image: Key, Root, Manifest and Size. It is called once the
// verifiers have agreed and the manifest has been read, so that a digest that
// cannot be run is not pinned, and before layers are fetched.
//
// It fails with a *pinnedElsewhere where another use came first, and with
// [imagepin.RetainLimitReached] or [imagepin.PinLimitReached] (both
// ErrResourceExhausted).
func (p *Puller) pinFirst(ctx context.Context, j *job, e imagepin.Entry) error {
	if j.toPin == nil || j.pin != nil {
		return nil
	}
	if j.toPin.retain {
		release, err := p.Retainer.Reserve(nil, e)
		if err != nil {
			return err
		}
		j.toPin.release = release
	}
	made, err := p.Pins.MakeFor(ctx, j.toPin.namespace, j.toPin.id, j.root, pin.ByUse, j.toPin.retain)
	if err != nil {
		return err
	}
	j.pin = &made
	if made.Root.Digest != j.root.Digest {
		return &pinnedElsewhere{pin: made}
	}
	// What other targets have of it: this pull may end before it has a key of its own.
	if err := p.retainPin(ctx, j.ref, made); err != nil && !noRoom(err) {
		return err
	}
	return nil
}

// stillPinned fails with a *pinnedElsewhere where the pin of a job has moved since
// it was read: while verifiers were asked, or a removal was waited for. A job of a
// digest stays with it.
func (p *Puller) stillPinned(j job) error {
	if _, ok := j.ref.(reference.Digested); ok || j.pin == nil {
		return nil
	}
	now, ok := p.Pins.Get(j.pin.ID)
	if !ok || now.Root.Digest == j.root.Digest {
		return nil
	}
	return &pinnedElsewhere{pin: now}
}

// releaseRoom gives up the room that pinFirst has kept.
func (r *pinRequest) releaseRoom() {
	if r != nil && r.release != nil {
		r.release()
		r.release = nil
	}
}

// follows is a job with the digest of a pin that somebody else has made.
func (p *Puller) follows(j job, held pin.Pin) job {
	j.pin, j.root, j.verified = &held, held.Root, false
	if j.proof != "" {
		j.proof = p.Resolver.Proof(j.ref, j.credential, held.Root.Digest)
	}
	return j
}
