package apply

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// turns allows one apply or repair at a time. An apply takes precedence over a repair, which it cancels. A rollback and a removal
// take precedence over an apply too.
type turns struct {
	mu  sync.Mutex
	now *turn
}

// turn is a running apply, or a running repair.
type turn struct {
	repair   bool
	canceled context.Context // done when the turn has to end; its cause says why
	cancel   context.CancelCauseFunc
	over     chan struct{}
	dropped  digest.Digest // what it applies of the drop directories; guarded by turns.mu
}

// take begins a turn, or returns the one that is running.
func (t *turns) take(repair bool) (mine, running *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		return nil, t.now
	}
	t.now = &turn{repair: repair, over: make(chan struct{})}
	t.now.canceled, t.now.cancel = context.WithCancelCause(context.Background())
	return t.now, nil
}

// end ends a turn that was taken.
func (t *turns) end(mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.now = nil
	mine.cancel(nil)
	close(mine.over)
}

// running returns the running turn, or nil.
func (t *turns) running() *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// setDropped notes which content of the drop directories the running turn applies.
func (t *turns) setDropped(id digest.Digest) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.dropped = id
	}
}

// within returns a context that also ends when the turn is canceled, with its cause, and a function that releases it.
func (t *turn) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.canceled, func() { cancel(context.Cause(t.canceled)) })
	return ctx, func() { stop(); cancel(nil) }
}

// inTurn marks the context of a function that [Applier.Detach] runs.
type inTurn struct{}

// turnOf is a turn of an apply that has begun.
type turnOf struct {
	end func()
	// dropped is what an apply that was canceled for this one would have applied of the drop directories. It may be empty.
	dropped digest.Digest
}

// begin makes the caller the only one that applies a lock, until it calls end. The context ends when the apply is canceled. begin
// cancels a running repair and waits for it, and so it does with a running apply if cause is not nil. Otherwise it fails with
// [imagepin.ApplyInProgress] (ErrFailedPrecondition).
func (a *Applier) begin(ctx context.Context, cause error) (context.Context, turnOf, error) {
	if ctx.Value(inTurn{}) == a {
		return ctx, turnOf{end: func() {}}, nil // Detach has begun, and ends
	}
	mine, dropped, err := a.takeTurn(ctx, cause)
	if err != nil {
		return nil, turnOf{}, err
	}
	ctx, release := mine.within(ctx)
	return ctx, turnOf{end: func() { release(); a.endTurn(mine) }, dropped: dropped}, nil
}

// takeTurn is begin without the context.
func (a *Applier) takeTurn(ctx context.Context, cause error) (_ *turn, dropped digest.Digest, _ error) {
	for {
		mine, running := a.turns.take(false)
		switch {
		case running == nil:
			return mine, dropped, nil
		case running.repair:
			running.cancel(context.Canceled)
		case cause == nil:
			return nil, "", a.inProgress()
		default:
			running.cancel(cause)
		}
		select {
		case <-running.over:
			dropped = cmp.Or(running.dropped, dropped) // it does not change any more; a repair can follow the apply
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
	}
}

func (a *Applier) endTurn(mine *turn) {
	a.progress.Store(nil)
	a.turns.end(mine)
}

func (a *Applier) inProgress() error {
	e := &imagepin.Error{
		Reason: imagepin.ApplyInProgress, Class: errdefs.ErrFailedPrecondition, Message: "another lock is being applied",
		Hint: "Wait until it is applied (imagepin lock status), or cancel it: imagepin apply --cancel",
	}
	if p := a.progress.Load(); p != nil {
		e.Message = fmt.Sprintf("lock %s is being applied (%s)", p.Lock, p.Phase)
	}
	return e
}

// canceledBy returns the cause of an apply that a command has canceled.
func canceledBy(command string) error {
	return &imagepin.Error{
		Reason: imagepin.ApplyCanceled, Class: errdefs.ErrAborted, Message: command + " has canceled the apply",
		Hint: "The node has the lock that it had: imagepin lock status",
	}
}

// isCanceled reports whether a command has canceled an apply.
func isCanceled(err error) bool {
	var known *imagepin.Error
	return errors.As(err, &known) && known.Reason == imagepin.ApplyCanceled
}

// Cancel ends the apply that is running, and returns when it has ended. It reports whether one was running. An apply that has
// switched to its lock by then is complete.
func (a *Applier) Cancel(ctx context.Context) (bool, error) {
	running := a.turns.running()
	if running == nil || running.repair {
		return false, nil
	}
	running.cancel(canceledBy("imagepin apply --cancel"))
	select {
	case <-running.over:
		return true, nil
	case <-ctx.Done():
		return true, context.Cause(ctx)
	}
}

// Detach runs a function in [Applier.Run], which goes on when the caller has gone. What the function applies is the only apply
// until it returns, and its error is in the status. Detach fails with ApplyInProgress (ErrFailedPrecondition) if another lock is
// being applied, and then does not run the function.
func (a *Applier) Detach(ctx context.Context, run func(context.Context) error) error {
	mine, _, err := a.takeTurn(ctx, nil)
	if err != nil {
		return err
	}
	select {
	case a.detached <- func(ctx context.Context) {
		defer a.endTurn(mine)
		ctx, release := mine.within(ctx)
		defer release()
		noted := a.failed.Load()
		if err := run(context.WithValue(ctx, inTurn{}, a)); err != nil && a.failed.Load() == noted {
			a.note("detached apply", err)
		}
	}:
		return nil
	case <-mine.canceled.Done():
		a.endTurn(mine)
		return context.Cause(mine.canceled)
	case <-ctx.Done():
		a.endTurn(mine)
		return context.Cause(ctx)
	}
}
