package reconcile

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestWaitForSeveral checks that a call that waits for three comparisons of four goes on when these three have ended, one after the other.
func TestWaitForSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := &unmarked{}
		for _, ref := range []string{"b:1", "a:1", "a:2", "a:3"} {
			u.pending = append(u.pending, &comparison{
				entries: []imagepin.Entry{{Key: imagepin.Key{Ref: ref}}}, done: make(chan struct{}),
			})
		}
		returned := make(chan error, 1)
		go func() {
			defer func() {
				if p := recover(); p != nil {
					t.Errorf("panic: %v", p)
				}
				close(returned)
			}()
			returned <- u.wait(t.Context(), func(e imagepin.Entry) bool { return strings.HasPrefix(e.Ref, "a:") })
		}()
		for n := range 3 {
			synctest.Wait()
			if len(returned) > 0 {
				t.Fatalf("it goes on after %d comparisons", n)
			}
			c := u.pending[0] // as run does
			u.pending = slices.DeleteFunc(u.pending, func(other *comparison) bool { return other == c })
			close(c.done)
		}
		synctest.Wait()
		if err, ok := <-returned; err != nil || !ok {
			t.Errorf("got %v, %t", err, ok)
		}
	})
}
