package ctdtest

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// namespaced notes calls whose context has no namespace. Stores reject them, but a caller can take the error for the answer that
// there is nothing.
type namespaced struct {
	mu    sync.Mutex
	first string // the first call without a namespace, with its stack
}

// failAtEnd fails a test at its end if there was such a call.
func (n *namespaced) failAtEnd(t testing.TB) {
	t.Cleanup(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.first != "" {
			t.Error(n.first)
		}
	})
}

// calls returns what notes the calls to a store.
func (n *namespaced) calls(store string) Before {
	return func(ctx context.Context, c Call) error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if _, ok := namespaces.Namespace(ctx); !ok && n.first == "" {
			n.first = fmt.Sprintf("%s.%s was called without a namespace:\n%s", store, c.Method, debug.Stack())
		}
		return nil
	}
}
