package apply

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// turns allows one apply or repair at a time. An apply takes precedence over a repair, which it cancels.
type turns struct {
	mu  sync.Mutex
	now *turn
}

// turn is a running apply, or a running repair.
type turn struct {
	cancel context.CancelFunc // ends a repair; nil for an apply
	over   chan struct{}
}

// take begins a turn, or returns the one that is running. repair is what cancels the new turn, and nil for an apply.
func (t *turns) take(repair context.CancelFunc) (end func(), running *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		return nil, t.now
	}
	mine := &turn{cancel: repair, over: make(chan struct{})}
	t.now = mine
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.now = nil
		close(mine.over)
	}, nil
}

// inTurn marks the context of a function that [Applier.Detach] runs.
type inTurn struct{}

// begin makes the caller the only one that applies a lock, until it calls end. It cancels a running repair and waits for it. It
// fails with [imagepin.ApplyInProgress] (ErrFailedPrecondition).
func (a *Applier) begin(ctx context.Context) (end func(), _ error) {
	if ctx.Value(inTurn{}) == a {
		return func() {}, nil // Detach has begun, and ends
	}
	for {
		end, running := a.turns.take(nil)
		switch {
		case running == nil:
			return func() {
				a.progress.Store(nil)
				end()
			}, nil
		case running.cancel == nil:
			return nil, a.inProgress()
		}
		running.cancel()
		select {
		case <-running.over:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (a *Applier) inProgress() error {
	e := &imagepin.Error{
		Reason: imagepin.ApplyInProgress, Class: errdefs.ErrFailedPrecondition, Message: "another lock is being applied",
		Hint: "Wait until it is applied. To see how far it is, run: imagepin lock status",
	}
	if p := a.progress.Load(); p != nil {
		e.Message = fmt.Sprintf("lock %s is being applied (%s)", p.Lock, p.Phase)
	}
	return e
}

// Detach runs a function in [Applier.Run], which goes on when the caller has gone. What the function applies is the only apply
// until it returns, and its error is in the status. Detach fails with ApplyInProgress (ErrFailedPrecondition) if another lock is
// being applied, and then does not run the function.
func (a *Applier) Detach(ctx context.Context, run func(context.Context) error) error {
	end, err := a.begin(ctx)
	if err != nil {
		return err
	}
	select {
	case a.detached <- func(ctx context.Context) {
		defer end()
		noted := a.failed.Load()
		if err := run(context.WithValue(ctx, inTurn{}, a)); err != nil && a.failed.Load() == noted {
			a.note("detached apply", err)
		}
	}:
		return nil
	case <-ctx.Done():
		end()
		return context.Cause(ctx)
	}
}
