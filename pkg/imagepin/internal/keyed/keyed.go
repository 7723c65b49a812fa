// Package keyed has locks that are taken by name and whose waiting ends with
// the caller's context.
package keyed

import (
	"context"
	"slices"
	"sync"
)

// Mutex is a set of mutexes, one per key. The zero value is ready for use. It
// is what containerd's unpacker takes as its duplication suppressor.
type Mutex struct {
	mu   sync.Mutex
	held map[string]*slot
}

type slot struct {
	token chan struct{} // holds one value while the key is free
	users int           // holders and waiters
}

// Lock waits until key is free. It returns the context's error if that ends
// first.
func (m *Mutex) Lock(ctx context.Context, key string) error {
	m.mu.Lock()
	s := m.held[key]
	if s == nil {
		if m.held == nil {
			m.held = make(map[string]*slot)
		}
		s = &slot{token: make(chan struct{}, 1)}
		s.token <- struct{}{}
		m.held[key] = s
	}
	s.users++
	m.mu.Unlock()

	select {
	case <-s.token:
		return nil
	case <-ctx.Done():
		m.leave(key, s)
		return context.Cause(ctx)
	}
}

// Unlock frees key. It panics if key is not locked.
func (m *Mutex) Unlock(key string) {
	m.mu.Lock()
	s := m.held[key]
	m.mu.Unlock()
	if s == nil {
		panic("keyed: Unlock of a key that is not locked: " + key)
	}
	s.token <- struct{}{}
	m.leave(key, s)
}

func (m *Mutex) leave(key string, s *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(m.held, key)
	}
}

// RWMutex is a set of reader/writer locks, one per key. A call names all the
// keys it needs at once; they are taken in one order, so that callers with
// overlapping keys cannot deadlock. The zero value is ready for use.
//
// Readers do not wait for a waiting writer: a writer that has to wait for a
// long reader holds up nobody else.
type RWMutex struct {
	mu    sync.Mutex
	state map[string]*rwState
}

type rwState struct {
	readers int
	writer  bool
	waiters int
	changed chan struct{} // closed and replaced when the key becomes freer
}

// RLock takes keys for reading. The returned function releases them.
func (m *RWMutex) RLock(ctx context.Context, keys ...string) (unlock func(), _ error) {
	return m.lock(ctx, keys, false)
}

// Lock takes keys for writing. The returned function releases them.
func (m *RWMutex) Lock(ctx context.Context, keys ...string) (unlock func(), _ error) {
	return m.lock(ctx, keys, true)
}

func (m *RWMutex) lock(ctx context.Context, keys []string, write bool) (func(), error) {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	for i, key := range keys {
		if err := m.lockOne(ctx, key, write); err != nil {
			m.unlock(keys[:i], write)
			return nil, err
		}
	}
	var once sync.Once
	return func() { once.Do(func() { m.unlock(keys, write) }) }, nil
}

func (m *RWMutex) lockOne(ctx context.Context, key string, write bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		m.state = make(map[string]*rwState)
	}
	s := m.state[key]
	if s == nil {
		s = &rwState{changed: make(chan struct{})}
		m.state[key] = s
	}
	for s.writer || (write && s.readers > 0) {
		changed := s.changed
		s.waiters++
		m.mu.Unlock()
		var err error
		select {
		case <-changed:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		m.mu.Lock()
		s.waiters--
		if err != nil {
			m.forget(key, s)
			return err
		}
	}
	if write {
		s.writer = true
	} else {
		s.readers++
	}
	return nil
}

func (m *RWMutex) unlock(keys []string, write bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		s := m.state[key]
		if write {
			s.writer = false
		} else {
			s.readers--
		}
		close(s.changed)
		s.changed = make(chan struct{})
		m.forget(key, s)
	}
}

func (m *RWMutex) forget(key string, s *rwState) {
	if !s.writer && s.readers == 0 && s.waiters == 0 {
		delete(m.state, key)
	}
}
