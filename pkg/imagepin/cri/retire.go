package cri

import (
	"context"
	"sync/atomic"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// retirement is how a service stops being more than a connection to the one
// behind it.
type retirement struct {
	retired atomic.Bool
	calls   keyed.RWMutex // read while a call is answered here
}

const anyCall = "call"

// enter begins an answer of this service's own. ok is false where there are
// none any more. A nil retirement never comes.
func (r *retirement) enter(ctx context.Context) (leave func(), ok bool, _ error) {
	if r == nil {
		return func() {}, true, nil
	}
	if r.retired.Load() {
		return nil, false, nil
	}
	leave, err := r.calls.RLock(ctx, anyCall)
	if err == nil && r.retired.Load() {
		leave()
		return nil, false, nil
	}
	return leave, err == nil, err
}

// Retire makes every call one of the service behind, until the process ends. It
// waits for the calls that are being answered here, and ends what goes on behind
// calls whose callers have gone.
func (s *Service) Retire(ctx context.Context) error {
	s.retirement.retired.Store(true)
	leave, err := s.retirement.calls.Lock(ctx, anyCall)
	if err != nil {
		return err
	}
	leave()
	return s.base.Puller.End(ctx)
}
