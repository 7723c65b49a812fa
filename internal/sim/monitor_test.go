package sim

import (
	"context"
	"time"

	"github.com/imagepin/imagepin/internal/sim/stockcri"
)

// eventMonitor models EventMonitor of containerd (internal/eventq and internal/cri/server/events.go, Start and backOff): it
// handles one event at a time. After it could not handle an event, it delays all events with the same name, and tries
// again after 1 s, 2 s, 4 s and so on, at most 5 min.
type eventMonitor struct {
	w      *world
	images *stockcri.Service
	proc   *process
	turn   chan struct{}       // held while an event is handled; guards queues
	queues map[string][]string // the topics of delayed events by name
}

func newEventMonitor(w *world, s *stockcri.Service, p *process) *eventMonitor {
	return &eventMonitor{w: w, images: s, proc: p, turn: make(chan struct{}, 1), queues: make(map[string][]string)}
}

// handle handles an event, or delays it.
func (m *eventMonitor) handle(ctx context.Context, topic, name string) {
	if !m.take(ctx) {
		return
	}
	defer m.release()
	queue, delayed := m.queues[name]
	if delayed || m.update(ctx, topic, name) != nil {
		m.queues[name] = append(queue, topic)
		if !delayed {
			go m.retry(ctx, name)
		}
	}
}

// retry handles the delayed events of a name.
func (m *eventMonitor) retry(ctx context.Context, name string) {
	for wait := time.Second; ; wait = min(2*wait, 5*time.Minute) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
		if !m.take(ctx) {
			return
		}
		for len(m.queues[name]) > 0 && m.update(ctx, m.queues[name][0], name) == nil {
			m.queues[name] = m.queues[name][1:]
		}
		done := len(m.queues[name]) == 0
		if done {
			delete(m.queues, name)
		}
		m.release()
		if done {
			return
		}
	}
}

func (m *eventMonitor) take(ctx context.Context) bool {
	select {
	case m.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *eventMonitor) release() { <-m.turn }

func (m *eventMonitor) update(ctx context.Context, topic, name string) error {
	if err := m.w.step(ctx, m.proc, "handles %s %s", topic, name); err != nil {
		return err
	}
	err := m.images.UpdateImage(ctx, name)
	if err != nil && ctx.Err() == nil {
		m.w.write("cri", "%s %s fails: %v", topic, name, err)
	}
	return err
}
