package replace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// mountPoints returns where directories are mounted, as lower directories of an overlay or by bind mounts, in all mount
// namespaces of the processes that this one can see.
func mountPoints(dirs []string) ([]string, error) {
	own, err := readMounts("self")
	if err != nil {
		return nil, err
	}
	wanted := make([]wantedDirectory, len(dirs))
	for i, dir := range dirs {
		if wanted[i], err = locate(dir, own); err != nil {
			return nil, err
		}
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []string
	look := func(mounts []mounted) {
		for _, m := range mounts {
			if slices.ContainsFunc(wanted, m.uses) {
				found = append(found, m.point)
			}
		}
	}
	look(own)
	seen := make(map[string]bool)
	if name, err := os.Readlink("/proc/self/ns/mnt"); err == nil {
		seen[name] = true
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		name, err := os.Readlink(filepath.Join("/proc", p.Name(), "ns", "mnt"))
		if err == nil && seen[name] {
			continue
		}
		if err != nil { // the process may have ended; if it is not readable, neither are its mounts
			continue
		}
		mounts, err := readMounts(p.Name())
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH), errors.Is(err, syscall.EINVAL):
			continue // the process has ended
		case err != nil:
			return nil, err
		}
		seen[name] = true
		look(mounts)
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// mounted is a mount, see proc_pid_mountinfo(5).
type mounted struct {
	device string // major:minor
	root   string // in the file system
	point  string
	// lower and upper are the lower directories and the upper directory of an overlay, as they were given to mount(2).
	lower []string
	upper string
}

// wantedDirectory is a directory, and where it is in its file system.
type wantedDirectory struct{ path, device, root string }

// uses reports whether a mount needs a directory.
func (m mounted) uses(d wantedDirectory) bool {
	if m.device == d.device && (m.root == d.root || strings.HasPrefix(m.root, d.root+"/")) {
		return true
	}
	return slices.ContainsFunc(m.lower, func(lower string) bool { return m.mayBe(lower, d.path) })
}

// mayBe reports whether a lower directory of a mount can be the directory of a snapshot. containerd's lower directories are
// relative if they are many, and below a directory ovl-idmapped* that is gone for a container with a user namespace
// (core/mount/mount_linux.go of containerd). Both show the last elements, the number of the snapshot and fs, if there is more
// than one. The upper directory is complete.
func (m mounted) mayBe(lower, dir string) bool {
	if filepath.Clean(lower) == filepath.Clean(dir) {
		return true
	}
	tail := filepath.Join(filepath.Base(filepath.Dir(dir)), filepath.Base(dir))
	sameTail := lower == tail || strings.HasSuffix(lower, "/"+tail)
	if mapped := strings.Contains(lower, "/ovl-idmapped"); mapped || !filepath.IsAbs(lower) {
		sameSnapshotter := m.upper == "" || strings.HasPrefix(m.upper, filepath.Dir(filepath.Dir(dir))+"/")
		_, err := strconv.Atoi(filepath.Base(filepath.Dir(lower)))
		return sameSnapshotter && (sameTail || mapped && err != nil)
	}
	if !sameTail {
		return false
	}
	a, aerr := os.Stat(lower)
	b, berr := os.Stat(dir)
	return aerr == nil && berr == nil && os.SameFile(a, b)
}

// locate returns where a directory is in its file system.
func locate(dir string, mounts []mounted) (wantedDirectory, error) {
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return wantedDirectory{}, err
	}
	best := -1
	for i, m := range mounts {
		below := m.point == "/" || path == m.point || strings.HasPrefix(path, m.point+"/")
		if below && (best < 0 || len(m.point) >= len(mounts[best].point)) { // a later mount hides an earlier one
			best = i
		}
	}
	if best < 0 {
		return wantedDirectory{}, fmt.Errorf("no mount has %s", dir)
	}
	m := mounts[best]
	rest, err := filepath.Rel(m.point, path)
	if err != nil {
		return wantedDirectory{}, err
	}
	return wantedDirectory{path: dir, device: m.device, root: filepath.Join(m.root, rest)}, nil
}

func readMounts(process string) ([]mounted, error) {
	b, err := os.ReadFile(filepath.Join("/proc", process, "mountinfo"))
	if err != nil {
		return nil, err
	}
	return parseMounts(string(b))
}

// parseMounts parses a file mountinfo.
func parseMounts(text string) ([]mounted, error) {
	var all []mounted
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		separator := slices.Index(fields, "-")
		if separator < 6 || len(fields) < separator+4 {
			return nil, fmt.Errorf("unexpected line in mountinfo: %q", line)
		}
		m := mounted{device: fields[2], root: unescape(fields[3]), point: unescape(fields[4])}
		if fields[separator+1] == "overlay" {
			for option := range strings.SplitSeq(fields[separator+3], ",") {
				name, value, _ := strings.Cut(option, "=")
				switch name {
				case "lowerdir":
					for dir := range strings.SplitSeq(value, ":") {
						m.lower = append(m.lower, unescape(dir))
					}
				case "upperdir":
					m.upper = unescape(value)
				case "lowerdir+", "datadir+": // of mounts that were created with fsconfig(2)
					m.lower = append(m.lower, unescape(value))
				}
			}
		}
		all = append(all, m)
	}
	return all, nil
}

// unescape replaces the octal numbers for white space and backslashes in a file mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
