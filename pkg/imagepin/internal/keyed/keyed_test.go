package keyed

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

func TestMutexExcludesAndCleansUp(t *testing.T) {
	var (
		m  Mutex
		wg sync.WaitGroup
		n  int
	)
	for range 100 {
		wg.Go(func() {
			if err := m.Lock(t.Context(), "a"); err != nil {
				t.Error(err)
				return
			}
			n++
			m.Unlock("a")
		})
	}
	wg.Wait()
	if n != 100 {
		t.Errorf("counted %d, want 100", n)
	}
	if len(m.held) != 0 {
		t.Errorf("%d keys remain after use", len(m.held))
	}
}

func TestMutexHonorsContext(t *testing.T) {
	var m Mutex
	if err := m.Lock(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want canceled", err)
	}
	if err := m.Lock(t.Context(), "b"); err != nil {
		t.Fatalf("locking another key: %v", err)
	}
	m.Unlock("a")
	if err := m.Lock(t.Context(), "a"); err != nil {
		t.Fatalf("locking after Unlock: %v", err)
	}
}

// TestUnlockOfAKeyThatIsNotLocked panics, also if another call is about to take the key, and does not stop the callers of other keys.
func TestUnlockOfAKeyThatIsNotLocked(t *testing.T) {
	free := make(chan struct{}, 1)
	free <- struct{}{}
	m := Mutex{held: map[string]*slot{"about to be taken": {token: free, users: 1}}}
	for _, key := range []string{"unknown", "about to be taken"} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", key)
				}
			}()
			m.Unlock(key)
		}()
		if err := m.Lock(t.Context(), "another"); err != nil {
			t.Fatal(err)
		}
		m.Unlock("another")
	}
}

// TestMutexIsFreeAfterAllHolders checks that a shared key is free after all of its holders have unlocked it, in any
// order.
func TestMutexIsFreeAfterAllHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m Mutex
		if err := m.Lock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		m.Share("a")
		locked := make(chan error, 1)
		go func() { locked <- m.Lock(t.Context(), "a") }()
		m.Unlock("a")
		synctest.Wait()
		select {
		case <-locked:
			t.Fatal("the key was locked while one holder had it")
		default:
		}
		m.Unlock("a")
		if err := <-locked; err != nil {
			t.Fatal(err)
		}
		m.Unlock("a")
		if len(m.held) != 0 {
			t.Errorf("%d keys remain after use", len(m.held))
		}
	})
}

func TestRWMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m RWMutex
		ctx := t.Context()
		r1, err := m.RLock(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		var locked bool
		go func() {
			unlock, err := m.Lock(ctx, "b", "a")
			if err != nil {
				t.Error(err)
				return
			}
			locked = true
			unlock()
		}()
		synctest.Wait()
		if locked {
			t.Fatal("a writer and a reader hold the lock")
		}
		r2, err := m.RLock(ctx, "a")
		if err != nil {
			t.Fatalf("reader while a writer waits: %v", err)
		}
		r2()
		r2() // the second call has no effect
		if synctest.Wait(); locked {
			t.Fatal("a writer and a reader hold the lock")
		}
		r1()
		if synctest.Wait(); !locked {
			t.Fatal("the writer did not get the lock")
		}
		if len(m.state) != 0 {
			t.Errorf("%d keys remain after use", len(m.state))
		}
	})
}

func TestRWMutexCancel(t *testing.T) {
	var m RWMutex
	unlock, err := m.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Lock(ctx, "a", "b"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want canceled", err)
	}
	unlock()
	if len(m.state) != 0 {
		t.Errorf("%d keys remain after use", len(m.state))
	}
}

func TestRWMutexWaitsWithoutHolding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var m RWMutex
		ctx := t.Context()
		busy, err := m.RLock(ctx, "b")
		if err != nil {
			t.Fatal(err)
		}
		locked := false
		go func() {
			unlock, err := m.Lock(ctx, "a", "b")
			if err != nil {
				t.Error(err)
				return
			}
			locked = true
			unlock()
		}()
		synctest.Wait()
		free, err := m.Lock(ctx, "a")
		if err != nil {
			t.Fatalf("locking a free key of a waiting writer: %v", err)
		}
		busy()
		if synctest.Wait(); locked {
			t.Fatal("two writers hold the lock")
		}
		free()
		if synctest.Wait(); !locked {
			t.Fatal("the writer did not get the lock")
		}
	})
}
