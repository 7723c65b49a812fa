package pull

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/metrics"
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

// Changed tells whether anything is another digest than before.
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

// Failed gives the first error of a target.
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
	unlock, err := p.images.RLock(ctx, tag.String())
	if err != nil {
		return Refreshed{}, err
	}
	defer unlock()
	r, err := p.Decider.Refresh(ctx, tag, scope, c)
	if err != nil {
		return Refreshed{}, err
	}
	done := Refreshed{Ref: tag, Registry: r.Verdict.Root}
	var ready []imagepin.Entry
	for _, e := range r.Images {
		made, err := p.makeFor(ctx, e.Target, job{Verdict: r.Verdict})
		ready = append(ready, made)
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
	v, moved, err := p.Decider.MovePins(ctx, r, ready)
	for i, held := range moved {
		done.Pins[i].After = held.Root.Digest
	}
	if err != nil {
		return err
	}
	for i, e := range r.Images {
		made, err := p.makeFor(ctx, e.Target, job{Verdict: v, skipMetrics: true})
		if err != nil {
			return err
		}
		failpoint.Reach("refresh.moved")
		done.Targets[i].After = made.Root.Digest
	}
	return nil
}

// makeFor does a job for a target. It fails with ErrNotFound where no runtime handler has the target any more.
func (p *Puller) makeFor(ctx context.Context, t runtimeplatform.Target, j job) (imagepin.Entry, error) {
	rt, ok := p.Runtimes.ForTarget(t)
	if !ok {
		return imagepin.Entry{}, fmt.Errorf("no runtime handler has target %s: %w", t, errdefs.ErrNotFound)
	}
	j.runtime = rt
	return p.run(ctx, j)
}

// Remake makes a key ready that has lost something: from what is on the node, and else from the registry with the node's
// own credentials. done is what that took.
func (p *Puller) Remake(ctx context.Context, e imagepin.Entry) (done metrics.Done, _ error) {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return "", err
	}
	_, err = p.makeFor(ctx, e.Target, job{
		Verdict: decide.Verdict{Ref: ref, Root: e.Root}, force: true, done: func(d metrics.Done) { done = d },
	})
	return done, err
}
