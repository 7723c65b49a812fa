package pull

import (
	"context"

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

// Refreshed is what a refresh did.
type Refreshed struct {
	Ref      reference.Named
	Registry ocispec.Descriptor // what the tag means now
	Pins     []RefreshedPin
	Targets  []RefreshedTarget
}

// RefreshedPin is a pin before and after.
type RefreshedPin struct {
	ID            pin.ID
	Before, After digest.Digest
}

// RefreshedTarget is what a reference means for a target before and after. Err
// is why it could not be made ready.
type RefreshedTarget struct {
	Target        runtimeplatform.Target
	Before, After digest.Digest
	Err           error
}

// Changed reports whether a digest is another one than before.
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

// Refresh asks the registry for the current digest of a tag, makes it ready for every target that has the tag, and then
// moves its pins: those of one scope, or all where scope is empty. Where a target cannot be made ready, or there is no
// room for what its pins retain, no pin moves, and nothing on the node is lost.
//
// It fails as [decide.Decider.Refresh] and [decide.Decider.MovePins] do.
func (p *Puller) Refresh(ctx context.Context, name string, scope policy.Scope, c resolve.Credential) (Refreshed, error) {
	tag, err := imagepin.ParseReference(name)
	if err != nil {
		return Refreshed{}, err
	}
	unlock, err := p.maker.c.Locks.ForUse(ctx, tag.String())
	if err != nil {
		return Refreshed{}, err
	}
	defer unlock()
	r, err := p.decider.Refresh(ctx, tag, scope, c)
	if err != nil {
		return Refreshed{}, err
	}
	done := Refreshed{Ref: tag, Registry: r.Verdict.Root}
	var ready []imagepin.Entry
	for _, e := range r.Images {
		made, err := p.makeFor(ctx, e.Target, r.Verdict, p.make)
		ready = append(ready, made.Entry)
		done.Targets = append(done.Targets, RefreshedTarget{Target: e.Target, Before: e.Root.Digest, After: e.Root.Digest, Err: err})
	}
	for _, held := range r.Pins {
		done.Pins = append(done.Pins, RefreshedPin{ID: held.ID, Before: held.Root.Digest, After: held.Root.Digest})
	}
	if done.Failed() != nil {
		return done, nil
	}
	failpoint.Reach("refresh.pulled")
	return done, p.moveTo(ctx, r, ready, &done)
}

// moveTo moves the pins of a refresh, and what its tag means for each target, to its digest, which is ready.
func (p *Puller) moveTo(ctx context.Context, r decide.Refresh, ready []imagepin.Entry, done *Refreshed) error {
	v, moved, err := p.decider.MovePins(ctx, r, ready)
	for i, held := range moved {
		done.Pins[i].After = held.Root.Digest
	}
	if err != nil {
		return err
	}
	for i, e := range r.Images {
		// Its pull is observed already.
		made, err := p.makeFor(ctx, e.Target, v, func(ctx context.Context, j Job) (Pulled, error) { return pulledOf(p.maker.Make(ctx, j)) })
		if err != nil {
			return err
		}
		failpoint.Reach("refresh.moved")
		done.Targets[i].After = made.Root.Digest
	}
	return nil
}

// makeFor makes a verdict for a target. It fails with ErrNotFound where no runtime handler has the target any more.
func (p *Puller) makeFor(ctx context.Context, t runtimeplatform.Target, v decide.Verdict, with func(context.Context, Job) (Pulled, error)) (Pulled, error) {
	rt, err := p.maker.runtimeOf(t)
	if err != nil {
		return Pulled{}, err
	}
	return with(ctx, Job{Verdict: v, Runtime: rt})
}
