package power

import (
	"os"
	"strconv"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
)

// cuts returns the number of cuts of both modes.
func cuts(t *testing.T) int {
	t.Helper()
	s := os.Getenv("IMAGEPIN_POWER_CUTS")
	if s == "" {
		return 40
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("IMAGEPIN_POWER_CUTS: %v", err)
	}
	return n
}

var modes = []node.Mode{node.Plugin, node.Serve}

// TestPower cuts power while a node pulls, applies a lock, goes back, sets pins, repairs or uninstalls, and when it has
// succeeded, at once and up to [maxDelay] later. After each boot all invariants hold. Every second cut also loses a half of what
// the disk had in its volatile cache.
func TestPower(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, true)
			violations := map[invariant]int{}
			done := 0
			for want := cuts(t) / len(modes); done < want; {
				for _, o := range f.operations() {
					for _, c := range f.cut(o) {
						done++
						for _, v := range f.verify(c.disk, c.promise) {
							violations[v.invariant]++
							t.Errorf("%s, cut %s: not true that %s: %s", o.name, c.when, v.invariant, v.text)
						}
					}
				}
			}
			t.Logf("%d cuts; violations: %v", done, violations)
		})
	}
}

// TestWithoutSync shows that this stage finds damage. On nodes that do not sync, it cuts power when a pull, an apply or a repair
// has succeeded. ext4 has not allocated the blocks of the new files then, so they are empty after the boot.
func TestWithoutSync(t *testing.T) {
	for _, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, false)
			for _, o := range []operation{f.pull(), f.apply(), f.repair()} {
				o.during, o.after = 0, 1
				found := map[invariant]int{}
				for _, c := range f.cut(o) {
					for _, v := range f.verify(c.disk, c.promise) {
						found[v.invariant]++
					}
				}
				t.Logf("%s: violations: %v", o.name, found)
				if found[intact] == 0 || (o.name == "apply") != (found[whole] > 0) {
					t.Errorf("%s: a power loss after it is not found: %v", o.name, found)
				}
			}
		})
	}
}
