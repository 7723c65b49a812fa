package pull

import (
	"context"
	"errors"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Refreshed is the result of a refresh.
type Refreshed struct {
	Ref      reference.Named
	Registry ocispec.Descriptor // what the tag resolves to now
	Pins     []RefreshedPin
	Targets  []RefreshedTarget
}

// RefreshedPin is a pin before and after a refresh.
type RefreshedPin struct {
	ID            pin.ID
	Before, After digest.Digest
}

// RefreshedTarget is the digest that a reference resolves to for a target, before and after a refresh. Err is the
// reason why the new digest could not be made ready.
type RefreshedTarget struct {
	Target        runtimeplatform.Target
	Before, After digest.Digest
	Err           error
}

// Changed reports whether a digest changed.
func (r Refreshed) Changed() bool {
	for _, p := range r.Pins {
		if p.Before != p.After {
			return true
		}
	}
	for _, t := range r.Targets {
		if t.Before != t.After {
			return true
		}
	}
	return false
}

// Failed returns the first error of a target.
func (r Refreshed) Failed() error {
	for _, t := range r.Targets {
		if t.Err != nil {
			return t.Err
		}
	}
	return nil
}

// Refresh resolves a tag at the registry, makes the result ready for every target that has the tag, and then moves the
// tag's pins: those of one scope, or all if scope is empty. If a target fails, or there is no space for what the pins
// retain, no pin moves and the content on the node stays.
//
// It fails as [decide.Decider.Refresh] and [decide.Decider.MovePins] do, and with ImageVerificationFailed
// (ErrPermissionDenied). Other errors are those of the targets.
func (p *Puller) Refresh(ctx context.Context, name string, scope policy.Scope, c resolve.Credential) (Refreshed, error) {
	tag, err := imagepin.ParseReference(name)
	if err != nil {
		return Refreshed{}, err
	}
	r, err := p.decider.Refresh(ctx, tag, scope, c)
	if err != nil {
		return Refreshed{}, err
	}
	// A pin can move without an image on the node, and then no pull verifies the digest.
	if err := p.maker.verify(ctx, tag, r.Verdict.Root); err != nil {
		return Refreshed{}, err
	}
	r.Images = slices.DeleteFunc(r.Images, func(e imagepin.Entry) bool {
		_, err := p.maker.runtimeOf(e.Target)
		return err != nil // pods cannot use it since the default snapshotter changed
	})
	done := Refreshed{Ref: tag, Registry: r.Verdict.Root}
	var ready []imagepin.Entry
	for _, e := range r.Images {
		made, err := p.makeFor(ctx, e.Target, r.Verdict, p.make)
		var known *imagepin.Error
		if errors.As(err, &known) && known.Reason == imagepin.RetainLimitReached {
			return Refreshed{}, err // no pin can move, whatever the other targets do
		}
		ready = append(ready, made.Entry)
		done.Targets = append(done.Targets, RefreshedTarget{Target: e.Target, Before: e.Root.Digest, After: e.Root.Digest, Err: err})
	}
	for _, held := range r.Verdict.Moves {
		done.Pins = append(done.Pins, RefreshedPin{ID: held.ID, Before: held.Root.Digest, After: held.Root.Digest})
	}
	if done.Failed() != nil {
		return done, nil
	}
	failpoint.Reach("refresh.pulled")
	return done, p.moveTo(ctx, r, ready, &done)
}

// moveTo moves the pins of a refresh, and the tag's key for each target, to the new digest, which is ready.
func (p *Puller) moveTo(ctx context.Context, r decide.Refresh, ready []imagepin.Entry, done *Refreshed) error {
	v, moved, err := p.decider.MovePins(ctx, r, ready)
	for i, held := range moved {
		done.Pins[i].After = held.Root.Digest
	}
	if err != nil {
		return err
	}
	for i, e := range r.Images {
		// The observer already has this pull.
		made, err := p.makeFor(ctx, e.Target, v, func(ctx context.Context, j Job) (Pulled, error) { return pulledOf(p.maker.Make(ctx, j)) })
		if err != nil {
			return err
		}
		failpoint.Reach("refresh.moved")
		done.Targets[i].After = made.Root.Digest
	}
	return nil
}

// makeFor makes a verified verdict ready for a target. It fails with ErrNotFound if no runtime handler has the target.
func (p *Puller) makeFor(ctx context.Context, t runtimeplatform.Target, v decide.Verdict, with func(context.Context, Job) (Pulled, error)) (Pulled, error) {
	rt, err := p.maker.runtimeOf(t)
	if err != nil {
		return Pulled{}, err
	}
	return with(ctx, Job{Verdict: v, Runtime: rt, verified: true})
}
