package machine

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// MountCgroups is a function for bash, mount_cgroups ROOT. It mounts the cgroups of its namespace below ROOT/sys/fs/cgroup.
//
//go:embed cgroups.sh
var MountCgroups string

// hierarchies returns the mount points of the host's cgroups, of both versions.
func hierarchies() ([]string, error) {
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") && strings.HasPrefix(f[1], "/sys/fs/cgroup") {
			points = append(points, f[1])
		}
	}
	return points, nil
}

// MakeCgroups creates a cgroup in each hierarchy, and returns the script with which a shell enters them.
func MakeCgroups(name string) (string, error) {
	points, err := hierarchies()
	if err != nil {
		return "", err
	}
	var enter strings.Builder
	for _, p := range points {
		dir := filepath.Join(p, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return "", err
		}
		// A new cpuset is empty and accepts no process.
		for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
			if all, err := os.ReadFile(filepath.Join(p, f)); err == nil {
				if err := os.WriteFile(filepath.Join(dir, f), all, 0o644); err != nil {
					return "", err
				}
			}
		}
		fmt.Fprintf(&enter, "echo $$ >%s/cgroup.procs; ", dir)
	}
	return enter.String(), nil
}

// RemoveCgroups removes the cgroups of [MakeCgroups] with all cgroups below. It retries, because a cgroup is busy for a
// moment after its last process was killed.
func RemoveCgroups(name string) error {
	points, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		var errs []error
		for _, p := range points {
			var dirs []string
			_ = filepath.WalkDir(filepath.Join(p, name), func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					dirs = append(dirs, path)
				}
				return nil
			})
			for _, d := range slices.Backward(dirs) {
				if err := syscall.Rmdir(d); err != nil && !errors.Is(err, syscall.ENOENT) {
					errs = append(errs, fmt.Errorf("removing %s: %w", d, err))
				}
			}
		}
		if err := errors.Join(errs...); !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
