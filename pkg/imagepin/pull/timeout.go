package pull

import (
	"context"
	"fmt"
	"time"

	"github.com/docker/go-units"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// within runs a pull for at most [Settings.Timeout], with what it waits for. It fails with [imagepin.PullTimedOut] then, whatever
// the error is that the end of the context has caused.
func (p *Puller) within(ctx context.Context, ref string, t runtimeplatform.Target, run func(context.Context, *meter) (Pulled, error)) (Pulled, error) {
	ctx, m, end := p.meters.start(ctx, p.maker.config.Bandwidth, ref, t)
	defer end()
	limit := p.maker.config.Settings().Timeout
	if limit <= 0 {
		return run(ctx, m)
	}
	timedOut := m.timedOut(limit)
	inner, cancel := context.WithTimeoutCause(ctx, limit, timedOut)
	defer cancel()
	pulled, err := run(inner, m)
	if err == nil || ctx.Err() != nil || context.Cause(inner) != error(timedOut) {
		return pulled, err
	}
	timedOut.Message += m.progress()
	return Pulled{Outcome: Failed}, timedOut
}

// timedOut returns the error of a pull that takes longer than a limit.
func (m *meter) timedOut(limit time.Duration) *imagepin.Error {
	return &imagepin.Error{
		Reason: imagepin.PullTimedOut, Ref: m.ref, Target: m.target.String(), Class: context.DeadlineExceeded,
		Message: fmt.Sprintf("the pull has not ended within pull_timeout (%s)", limit),
		Hint:    "Check the network to the registry, or raise pull_timeout. To see what a pull waits for, run: imagepin status",
	}
}

// progress says how much of the pull has been received, if that is known.
func (m *meter) progress() string {
	total := m.total.Load()
	if total == 0 {
		return ""
	}
	return fmt.Sprintf(": received %s of %s", units.BytesSize(float64(m.received.Load())), units.BytesSize(float64(total)))
}
