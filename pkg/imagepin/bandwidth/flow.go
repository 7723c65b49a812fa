package bandwidth

import (
	"context"
	"sync/atomic"
)

// Wait is what a flow waits for.
type Wait string

// What a flow waits for. The empty Wait is none of these.
const (
	// Registry: a response, or a part of one.
	Registry Wait = "registry"
	// RateLimit: its share of a limit.
	RateLimit Wait = "rate limit"
	// OtherPull: content that another pull writes.
	OtherPull Wait = "another pull"
)

// Flow is what one pull receives from registries. A nil Flow has no limit, and counts nothing.
type Flow struct {
	receiving atomic.Int64 // requests that wait for their registry
	throttled atomic.Int64 // requests that wait for a limit
	others    atomic.Int64 // locks of other pulls that are waited for

	pod    atomic.Bool // a pod waits for it
	limits []limit
}

// limit is the share of a flow in a limiter.
type limit struct {
	*Limiter
	share *share
}

type (
	flowKey  struct{}
	podKey   struct{}
	groupKey struct{}
)

// With returns a context whose requests belong to a flow.
func With(ctx context.Context, f *Flow) context.Context { return context.WithValue(ctx, flowKey{}, f) }

// Of returns the flow of a context, or nil.
func Of(ctx context.Context) *Flow {
	f, _ := ctx.Value(flowKey{}).(*Flow)
	return f
}

// ForPod returns a context whose new flows are those of a pod.
func ForPod(ctx context.Context) context.Context { return context.WithValue(ctx, podKey{}, true) }

// WithLimit returns a context in which all new flows together receive at most bytesPerSecond. Zero or less means no limit.
func WithLimit(ctx context.Context, bytesPerSecond int64) context.Context {
	if bytesPerSecond <= 0 {
		return ctx
	}
	l := &Limiter{}
	l.SetRate(bytesPerSecond)
	return context.WithValue(ctx, groupKey{}, l)
}

// NewFlow returns a flow with the limits of a context, and that of a node; node may be nil.
func NewFlow(ctx context.Context, node *Limiter) *Flow {
	f := &Flow{}
	f.pod.Store(ctx.Value(podKey{}) != nil)
	if group, ok := ctx.Value(groupKey{}).(*Limiter); ok {
		f.limits = append(f.limits, limit{group, &share{flow: f}})
	}
	if node != nil {
		f.limits = append(f.limits, limit{node, &share{flow: f}})
	}
	return f
}

// Receive runs fn, which waits for a registry.
func (f *Flow) Receive(fn func()) {
	if f != nil {
		f.receiving.Add(1)
		defer f.receiving.Add(-1)
	}
	fn()
}

// Chunk returns the beginning of a buffer that the flow may read into at once.
func (f *Flow) Chunk(p []byte) []byte {
	if f == nil {
		return p
	}
	for _, l := range f.limits {
		if n := l.chunk(); n > 0 && n < len(p) {
			p = p[:n]
		}
	}
	return p
}

// Received waits until the flow may have received n bytes. It ends with the context, and then returns its error.
func (f *Flow) Received(ctx context.Context, n int) error {
	if f == nil {
		return nil
	}
	f.throttled.Add(1)
	defer f.throttled.Add(-1)
	for _, l := range f.limits {
		if err := l.wait(ctx, l.share, n); err != nil {
			return err
		}
	}
	return nil
}

// WaitForPull runs fn, which waits for another pull.
func (f *Flow) WaitForPull(fn func() error) error {
	if f != nil {
		f.others.Add(1)
		defer f.others.Add(-1)
	}
	return fn()
}

// Waits returns what the flow waits for now. One part of a pull can receive while another one waits for a pull: then it is the
// registry.
func (f *Flow) Waits() Wait {
	switch {
	case f.throttled.Load() > 0:
		return RateLimit
	case f.receiving.Load() > 0:
		return Registry
	case f.others.Load() > 0:
		return OtherPull
	}
	return ""
}
