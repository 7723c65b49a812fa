package power

import (
	"os"
	"strconv"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/power/disk"
	"github.com/imagepin/imagepin/integration/testkit"
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

// filesOnly reports whether syncfs fails on the nodes of a mode: in containerd, or everywhere if IMAGEPIN_POWER_FILES_ONLY is set.
// Otherwise a node that is slow also syncs the whole file system.
func filesOnly(mode node.Mode) bool {
	return mode == node.Plugin || os.Getenv("IMAGEPIN_POWER_FILES_ONLY") != ""
}

var modes = []node.Mode{node.Plugin, node.Serve}

// TestPower cuts power while a node pulls, applies a lock, goes back, sets pins, repairs or uninstalls, and when it has
// succeeded, at once and up to [maxDelay] later. After each boot all invariants hold. Every second cut also loses a half of what
// the disk had in its volatile cache. One node has the native snapshotter beside overlayfs, the other one EROFS.
// Where syncfs fails, fsync of the files of snapshots is all that makes them durable.
func TestPower(t *testing.T) {
	for i, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, testkit.SecondSnapshotters[i], how{sync: true, filesOnly: filesOnly(mode)})
			violations := map[invariant]int{}
			done := 0
			for want := cuts(t) / len(modes); done < want; {
				for _, o := range f.operations() {
					for _, c := range f.cut(o) {
						done++
						for _, v := range f.verify(c) {
							violations[v.invariant]++
							t.Errorf("%s, cut %s: not true that %s: %s", o.name, c.when, v.invariant, v.text)
						}
					}
				}
				t.Logf("%d cuts; violations: %v", done, violations)
			}
		})
	}
}

// TestWithoutSync shows that a cut loses what is not synced. On nodes that do not sync, it cuts power when a pull, an apply or a
// repair has succeeded. ext4 has not allocated the blocks of the new files then, so they are empty. One node has the native
// snapshotter beside overlayfs, the other one EROFS.
func TestWithoutSync(t *testing.T) {
	for i, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, testkit.SecondSnapshotters[i], how{})
			for _, o := range []operation{f.pull(), f.apply(), f.repair()} {
				o.during, o.after = 0, 1
				emptied := 0
				// A process that syncs all disks of the machine, as dpkg does, can do so before the cut.
				for tries := 5; emptied == 0 && tries > 0; tries-- {
					emptied = f.emptied(f.cut(o)[0].disk)
				}
				t.Logf("%s: %d files are empty", o.name, emptied)
				if emptied == 0 {
					t.Errorf("%s: a power loss after it loses nothing", o.name)
				}
			}
		})
	}
}

// emptied returns the number of files in the snapshots on a disk that are empty, and not in their images.
func (f *fleet) emptied(d *disk.Disk) (n int) {
	f.t.Helper()
	f.machine.onDisk(d.MountCopy, func(path string) error {
		info, err := os.Lstat(path)
		if err == nil && info.Size() == 0 {
			n++
		}
		return err
	})
	return n
}

// TestDamageIsFound shows that a verification finds each kind of loss. It boots a disk on which files of snapshots were emptied
// when all was synced, and requires another lock, pin and pull than it has.
func TestDamageIsFound(t *testing.T) {
	for i, mode := range modes {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, mode, testkit.SecondSnapshotters[i], how{sync: true})
			d := f.installed.Cut()
			f.machine.onDisk(d.Mount, func(path string) error { return os.Truncate(path, 0) })
			p := f.promised.clone()
			p.images[pulled{f.large, ""}] = f.current[f.large]
			p.pins[f.kept] = f.versions[f.kept]
			p.locks = f.locks[1:]
			found := map[invariant]int{}
			for _, v := range f.verify(cut{disk: d, promise: p, pulls: []pulled{{f.large, ""}}}) {
				found[v.invariant]++
			}
			for _, i := range []invariant{intact, whole, keptPins, present, recovered, once} {
				if found[i] == 0 {
					t.Errorf("not found that %s is violated: %v", i, found)
				}
			}
		})
	}
}
