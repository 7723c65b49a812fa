package crash

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/node"
)

// TestFailpoints kills containerd at every failpoint, in all operations that reach it. After a restart the node is
// consistent, the operation can be repeated, and everything can be removed.
func TestFailpoints(t *testing.T) {
	t.Parallel()
	var (
		mu      sync.Mutex
		covered = map[string]bool{}
	)
	scenarios := maps.Clone(crashScenarios)
	for _, name := range []string{"pull for a second snapshotter", "remove for one handler"} {
		s := scenarios[name]
		s.second = node.EROFS
		scenarios[name+" on EROFS"] = s
	}
	t.Run("scenarios", func(t *testing.T) {
		for name, s := range scenarios {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s.options.NoPods = name != "RunPodSandbox"
				c := newKillRig(t, cmp.Or(s.second, "native"), s.options)
				c.awaitCollected()
				s.setup(c)
				c.disarm()
				if err := s.op(c); err != nil {
					t.Fatal(err)
				}
				c.wantConsistent("after the operation")
				names, times := c.reached()
				c.removeAll("after the operation")
				for _, at := range names {
					if !s.kills(at) {
						continue
					}
					for _, n := range visits(times[at]) {
						if c.killAndCheck(s, fmt.Sprintf("%s:%d", at, n)) {
							mu.Lock()
							covered[at] = true
							mu.Unlock()
						} else if n == 1 && !slices.Contains(s.sometimes, at) {
							t.Errorf("failpoint %s was reached by the first run of the operation, but not by the second", at)
						}
					}
				}
			})
		}
	})
	for _, name := range failpointNames(t) {
		if slices.Contains(inCluster, name) || slices.Contains(notReached[node.DefaultMode()], name) {
			continue
		}
		if strings.HasPrefix(name, "install.") {
			continue // integration/packages kills imagepin install
		}
		if !covered[name] {
			t.Errorf("no scenario kills containerd at failpoint %s", name)
		}
	}
}

// visits returns at which visits of a failpoint containerd is killed: all, or the first two and the last of many. imagepin serve,
// whose writes are those of the plugin, is killed at the first one. make soak (IMAGEPIN_CRASH_ROUNDS) kills it at each.
func visits(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	switch {
	case os.Getenv("IMAGEPIN_CRASH_ROUNDS") != "":
	case node.DefaultMode() == node.Serve:
		return []int{1}
	case n > 4:
		return []int{1, 2, n}
	}
	return all
}

// kills reports whether the scenario is killed at a failpoint.
func (s scenario) kills(at string) bool {
	return s.only == nil || slices.ContainsFunc(s.only, func(prefix string) bool { return strings.HasPrefix(at, prefix) })
}

// notReached lists the failpoints that a mode does not reach.
var notReached = map[node.Mode][]string{
	// Calls hold what they use, and start garbage collection, without a lease.
	node.Plugin: {"collect.leased", "use.leased"},
	// containerd's socket has no transactions, and containerd unpacks layers after their download.
	node.Serve: {"store.committed", "store.notified", "download.begin", "download.committed"},
}

// inCluster lists the failpoints of claims in the Kubernetes API. The tests with an API server kill containerd at them
// (integration/kubelet/agree).
var inCluster = []string{"claim.create", "claim.created"}

// awaitEnd waits a moment for the end of containerd.
func (c *killRig) awaitEnd() {
	ctx, cancel := context.WithTimeout(c.Ctx, 2*time.Second)
	defer cancel()
	_ = c.Wait(ctx) // diedAt shows whether it has ended
}

// killAndCheck kills containerd at a failpoint of a scenario and checks the node after a restart. It reports whether
// the failpoint was reached.
func (c *killRig) killAndCheck(s scenario, at string) bool {
	c.T.Helper()
	s.setup(c)
	c.arm(at)
	err := s.op(c)
	if err == nil {
		c.awaitEnd() // the operation may continue in the background
	}
	died := c.diedAt() != ""
	if !died && err != nil {
		c.T.Fatalf("the operation failed before failpoint %s: %v", at, err)
	}
	c.revive()
	if s.after != nil {
		s.after(c)
	}
	c.wantConsistent("after a kill at " + at)
	if err := s.op(c); err != nil {
		c.T.Fatalf("repeating the operation after a kill at %s: %v", at, err)
	}
	c.wantConsistent("after repeating the operation that was killed at " + at)
	c.removeAll("after a kill at " + at)
	return died
}

var failpointName = regexp.MustCompile(`(?m)^\t"([a-z]+\.[a-z]+)",`)

// failpointNames reads the list of package failpoint, whose test compares it with the code.
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
		t.Fatalf("got only %d failpoints: %q", len(names), names)
	}
	return names
}
