package cri

import (
	"context"
	"sync/atomic"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/keyed"
)

// retirement makes a service forward all calls to upstream.
type retirement struct {
	retired atomic.Bool
	calls   keyed.RWMutex // read-locked while a call is answered here
}

const anyCall = "call"

// enter starts a call that this service answers. ok is false once the service is retired. A nil retirement never
// retires.
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

// Retire forwards every call to upstream until the process ends. It waits for the calls that are being answered here,
// and ends detached pulls, whose callers have gone.
func (s *Service) Retire(ctx context.Context) error {
	s.retirement.retired.Store(true)
	leave, err := s.retirement.calls.Lock(ctx, anyCall)
	if err != nil {
		return err
	}
	leave()
	return s.base.Puller.Shutdown(ctx)
}
