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
	// OtherPull: content that another pull writes.
	OtherPull Wait = "another pull"
)

// Flow is what one pull receives from registries. A nil Flow is that of requests without a pull: it counts nothing.
type Flow struct {
	receiving atomic.Int64 // requests that wait for their registry
	others    atomic.Int64 // locks of other pulls that are waited for
}

type flowKey struct{}

// With returns a context whose requests belong to a flow.
func With(ctx context.Context, f *Flow) context.Context { return context.WithValue(ctx, flowKey{}, f) }

// Of returns the flow of a context, or nil.
func Of(ctx context.Context) *Flow {
	f, _ := ctx.Value(flowKey{}).(*Flow)
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
	case f.receiving.Load() > 0:
		return Registry
	case f.others.Load() > 0:
		return OtherPull
	}
	return ""
}
