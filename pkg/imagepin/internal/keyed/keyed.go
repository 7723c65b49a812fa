// Package keyed provides locks by key. Waiting for a lock ends with the caller's context.
package keyed

import (
	"context"
	"slices"
	"sync"
)

// Mutex is a set of mutexes, one per key. The zero value is ready for use. It implements the duplication suppressor of
// containerd's unpacker.
type Mutex struct {
	mu   sync.Mutex
	held map[string]*slot
}

type slot struct {
	token   chan struct{} // holds one value while the key is free
	users   int           // holders and waiters
	sharers int           // further holders, see Share
}

// Lock waits until key is free. It returns the context's error if the context ends first, or has ended.
func (m *Mutex) Lock(ctx context.Context, key string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
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
		m.mu.Lock()
		defer m.mu.Unlock()
		m.leave(key, s)
		return context.Cause(ctx)
	}
}

// Unlock frees key, unless it is shared and another holder has not unlocked it. It panics if key is not locked.
func (m *Mutex) Unlock(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.held[key]
	if s != nil && s.sharers > 0 {
		s.sharers--
		return
	}
	if s != nil {
		select {
		case s.token <- struct{}{}:
			m.leave(key, s)
			return
		default: // nobody has taken the token; to wait here would stop the callers of all keys
		}
	}
	panic("keyed: Unlock of a key that is not locked: " + key)
}

// Share adds a holder to key, which the caller has locked. Each holder calls Unlock once. Share panics if key is not
// locked.
func (m *Mutex) Share(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.held[key]
	if s == nil {
		panic("keyed: Share of a key that is not locked: " + key)
	}
	s.sharers++
}

// leave removes a holder or a waiter. The caller holds m.mu.
func (m *Mutex) leave(key string, s *slot) {
	if s.users--; s.users == 0 {
		delete(m.held, key)
	}
}

// RWMutex is a set of reader/writer locks, one per key. A call locks all keys that it needs at once, and holds none of
// them while it waits, so callers with overlapping keys cannot deadlock. The zero value is ready for use.
//
// Waiters do not block others: a writer that waits for a long reader of one key blocks no readers of that key or of its
// other keys.
type RWMutex struct {
	mu    sync.Mutex
	state map[string]*rwState
}

type rwState struct {
	readers int
	writer  bool
	waiters int
	changed chan struct{} // closed and replaced when the key is released
}

// RLock locks keys for reading. The returned function unlocks them.
func (m *RWMutex) RLock(ctx context.Context, keys ...string) (unlock func(), _ error) {
	return m.lock(ctx, keys, false)
}

// Lock locks keys for writing. The returned function unlocks them.
func (m *RWMutex) Lock(ctx context.Context, keys ...string) (unlock func(), _ error) {
	return m.lock(ctx, keys, true)
}

func (m *RWMutex) lock(ctx context.Context, keys []string, write bool) (func(), error) {
	keys = slices.Clone(keys)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		busy := slices.IndexFunc(keys, func(key string) bool { return m.busy(key, write) })
		if busy < 0 {
			break
		}
		if err := m.wait(ctx, keys[busy]); err != nil {
			return nil, err
		}
	}
	for _, key := range keys {
		m.take(key, write)
	}
	var once sync.Once
	return func() { once.Do(func() { m.unlock(keys, write) }) }, nil
}

// busy reports whether key cannot be locked now.
func (m *RWMutex) busy(key string, write bool) bool {
	s := m.state[key]
	return s != nil && (s.writer || (write && s.readers > 0))
}

// wait waits until key, which is busy, is released by a holder. The caller holds m.mu, which wait unlocks while it
// waits.
func (m *RWMutex) wait(ctx context.Context, key string) error {
	s := m.state[key]
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
	m.forget(key, s)
	return err
}

func (m *RWMutex) take(key string, write bool) {
	s := m.state[key]
	if s == nil {
		if m.state == nil {
			m.state = make(map[string]*rwState)
		}
		s = &rwState{changed: make(chan struct{})}
		m.state[key] = s
	}
	if write {
		s.writer = true
	} else {
		s.readers++
	}
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
