package crash

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/node"
)

// TestFailpoints kills containerd at every failpoint, in all operations that reach it. What a start makes of it is sound; the operation can be done
// again; and in the end everything can be removed, and nothing is left.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		covered = map[string]bool{}
	)
	t.Run("scenarios", func(t *testing.T) {
		for name, s := range crashScenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s.options.NoPods = name != "RunPodSandbox"
				c := newKillRig(t, s.options)
				s.setup(c)
				c.disarm()
				if err := s.op(c); err != nil {
					t.Fatal(err)
				}
				c.sound("after the operation")
				names, times := c.reached()
				c.purge("after the operation")
				for _, at := range names {
					for n := range times[at] {
						if c.dies(s, fmt.Sprintf("%s:%d", at, n+1)) {
							mu.Lock()
							covered[at] = true
							mu.Unlock()
						} else if n == 0 && !slices.Contains(s.sometimes, at) {
							t.Errorf("%s was reached, but not again", at)
						}
					}
				}
			})
		}
	})
	for _, name := range failpointNames(t) {
		if !covered[name] && !(node.DefaultMode() == node.Serve && slices.Contains(inTransaction, name)) {
			t.Errorf("containerd was never killed at %s", name)
		}
	}
}

// inTransaction are the failpoints around a transaction, which there is none of over containerd's socket.
var inTransaction = []string{"store.committed", "store.notified"}

// end waits for containerd's end, a little.
func (c *killRig) end() {
	ctx, cancel := context.WithTimeout(c.Ctx, 2*time.Second)
	defer cancel()
	_ = c.Wait(ctx) // whether it has ended is told by the failpoint
}

// dies kills containerd at a failpoint of a scenario and looks at what is left. It tells whether the failpoint was reached.
func (c *killRig) dies(s scenario, at string) bool {
	c.T.Helper()
	s.setup(c)
	c.arm(at)
	err := s.op(c)
	if err == nil {
		c.end() // some of it goes on behind the service
	}
	died := c.died() != ""
	if !died && err != nil {
		c.T.Fatalf("%s: %v", at, err)
	}
	c.revive()
	if s.after != nil {
		s.after(c)
	}
	c.sound("killed at " + at)
	if err := s.op(c); err != nil {
		c.T.Fatalf("again after it was killed at %s: %v", at, err)
	}
	c.sound("again after it was killed at " + at)
	c.purge("after it was killed at " + at)
	return died
}

var failpointName = regexp.MustCompile(`(?m)^\t"([a-z]+\.[a-z]+)",`)

// failpointNames reads the list in package failpoint, which a test of its own compares with the sources.
func failpointNames(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../internal/failpoint/failpoint.go")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range failpointName.FindAllStringSubmatch(string(b), -1) {
		names = append(names, m[1])
	}
	if len(names) < 30 {
		t.Fatalf("failpoints %q", names)
	}
	return names
}
