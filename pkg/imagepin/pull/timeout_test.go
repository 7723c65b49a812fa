package pull

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestBounded checks that a pull ends at its time limit, also if it only waits for another pull, and that its error says so
// unless it has another reason.
func TestBounded(t *testing.T) {
	const limit = 10 * time.Minute
	canceled := errors.New("canceled by the caller")
	other := &imagepin.Error{Reason: imagepin.PullAccessDenied}
	for name, c := range map[string]struct {
		limit time.Duration
		run   func(context.Context, *meter) (Pulled, error)
		took  time.Duration
		want  error // nil is no error
		text  string
	}{
		"no limit": {0, func(context.Context, *meter) (Pulled, error) {
			time.Sleep(100 * limit)
			return Pulled{Outcome: Fetched}, nil
		}, 100 * limit, nil, ""},
		"in time": {limit, func(ctx context.Context, _ *meter) (Pulled, error) {
			time.Sleep(limit - 1)
			return Pulled{Outcome: Fetched}, ctx.Err()
		}, limit - 1, nil, ""},
		"too late, and ready": {limit, func(context.Context, *meter) (Pulled, error) {
			time.Sleep(limit + 1)
			return Pulled{Outcome: Fetched}, nil
		}, limit + 1, nil, ""},
		"too slow": {limit, func(ctx context.Context, m *meter) (Pulled, error) {
			m.expect(40 << 20)
			for range 30 { // any byte is progress for the stall limit
				m.add(1 << 20)
				time.Sleep(limit / 40)
			}
			<-ctx.Done()
			return Pulled{Outcome: Canceled}, errors.New("connection reset by peer")
		}, limit, context.DeadlineExceeded, "PullTimedOut: registry.example.com/app:v1 for linux/amd64 on overlayfs: the pull has not ended within pull_timeout (10m0s): received 30MiB of 40MiB\n"},
		"waits for another pull": {limit, func(ctx context.Context, _ *meter) (Pulled, error) {
			locks := (&Locks{}).of("registry.example.com")
			if _, err := locks.blob(ctx, digest.FromString("blob")); err != nil {
				return Pulled{}, err
			}
			_, err := locks.blob(ctx, digest.FromString("blob"))
			return Pulled{Outcome: Canceled}, err
		}, limit, context.DeadlineExceeded, "PullTimedOut: registry.example.com/app:v1 for linux/amd64 on overlayfs: the pull has not ended within pull_timeout (10m0s)\n"},
		"failed before": {limit, func(context.Context, *meter) (Pulled, error) {
			return Pulled{Outcome: Failed}, other
		}, 0, other, "PullAccessDenied"},
		"canceled before": {limit, func(ctx context.Context, _ *meter) (Pulled, error) {
			cancelOf(ctx)(canceled)
			<-ctx.Done()
			time.Sleep(2 * limit)
			return Pulled{Outcome: Canceled}, context.Cause(ctx)
		}, 2 * limit, canceled, canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				p := &Puller{maker: &Maker{config: Config{Settings: func() *Settings { return &Settings{Timeout: c.limit} }}}}
				start := time.Now()
				pulled, err := p.within(context.WithValue(ctx, cancelKey{}, cancel), "registry.example.com/app:v1", runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "overlayfs"}, c.run)
				if took := time.Since(start); took != c.took {
					t.Errorf("took %s, want %s", took, c.took)
				}
				var typed *imagepin.Error
				switch {
				case !errors.Is(err, c.want):
					t.Errorf("got %v, want %v", err, c.want)
				case err != nil && !strings.HasPrefix(err.Error(), c.text):
					t.Errorf("got %q, want %q", err, c.text)
				case errors.As(err, &typed) && typed.Reason == imagepin.PullTimedOut && (pulled.Outcome != Failed || typed.Hint == ""):
					t.Errorf("got outcome %q and hint %q", pulled.Outcome, typed.Hint)
				}
				if all := p.Running(); len(all) > 0 {
					t.Errorf("after the end: %v", all)
				}
			})
		})
	}
}

type cancelKey struct{}

func cancelOf(ctx context.Context) context.CancelCauseFunc {
	return ctx.Value(cancelKey{}).(context.CancelCauseFunc)
}
