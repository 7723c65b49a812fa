package cri

import (
	"context"
	"sync"
)

// retirement makes a service forward all calls to upstream. The zero value is ready for use.
type retirement struct {
	mu      sync.Mutex
	retired bool
	calls   int           // that are being answered here
	idle    chan struct{} // closed when no call is left after the retirement; nil before
}

// enter starts a call that this service answers. ok is false once the service is retired. A nil retirement never
// retires.
func (r *retirement) enter() (leave func(), ok bool) {
	if r == nil {
		return func() {}, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		return nil, false
	}
	r.calls++
	return r.leave, true
}

// leave ends a call.
func (r *retirement) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls--; r.calls == 0 && r.retired {
		close(r.idle)
	}
}

// retire makes enter return false, and returns a channel that is closed when all calls have ended.
func (r *retirement) retire() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.retired {
		r.retired, r.idle = true, make(chan struct{})
		if r.calls == 0 {
			close(r.idle)
		}
	}
	return r.idle
}

// isRetired reports whether enter returns false.
func (r *retirement) isRetired() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.retired
}

// Retire forwards every call to upstream until the process ends. It waits for the calls that are being answered here,
// and ends detached pulls, whose callers have gone.
func (s *Service) Retire(ctx context.Context) error {
	select {
	case <-s.retirement.retire():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.base.Puller.Shutdown(ctx)
}

// Retired reports whether [Service.Retire] was called.
func (s *Service) Retired() bool { return s.retirement.isRetired() }
