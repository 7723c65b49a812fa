package node

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
	"time"
)

// rootPrefix and the process ID begin the name of a temporary root, so that what a killed process left can be found.
const rootPrefix = "imagepin-"

// Close ends containerd, its shims and its containers, unmounts what is mounted below the root, and removes the node's
// cgroups and, if it is a temporary one, the root. It can be called in any state, also twice.
func (n *Node) Close() error {
	return errors.Join(n.Kill9(), cleanup(n.root, n.ownsRoot))
}

// Cgroup is the cgroup of everything that runs on the node; what else is put below it is ended and removed with the node.
func (n *Node) Cgroup() string { return cgroupParent(n.root) }

// cgroupParent is the cgroup of a node's pods. Being the root's name, it tells a node's processes from all others.
func cgroupParent(root string) string { return "/" + filepath.Base(root) }

// cleanup removes everything that a node whose containerd is gone left behind. It finds it by the root alone.
func cleanup(root string, removeRoot bool) error {
	var errs []error
	// Killed again and again until none is left: a shim that was just forked may have been missed.
	deadline := time.Now().Add(20 * time.Second)
	for {
		pids := processes(root)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("processes %v of %s do not die", pids, root))
			break
		}
		// They are not our children, so that their end cannot be waited for, only looked for.
		time.Sleep(2 * time.Millisecond)
	}
	if err := UnmountBelow(root); err != nil {
		errs = append(errs, err)
	}
	if err := removeCgroups(cgroupParent(root)); err != nil {
		errs = append(errs, err)
	}
	if removeRoot {
		if err := os.RemoveAll(root); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// processes are the shims, whose command line has the root's socket, and what runs in the node's cgroup.
func processes(root string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		cmdline, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if len(cmdline) == 0 {
			continue // a zombie, or a thread of the kernel
		}
		args := strings.Split(string(cmdline), "\x00")
		shim := strings.Contains(args[0], "containerd-shim") && slices.Contains(args, filepath.Join(root, "containerd.sock"))
		// A runc that is still at work when containerd dies has the root in its arguments.
		runc := filepath.Base(args[0]) == "runc" && slices.Contains(args, filepath.Join(root, "runc", Namespace))
		cgroups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		inside := strings.Contains(string(cgroups), ":"+cgroupParent(root)+"/")
		if shim || runc || inside {
			pids = append(pids, pid)
		}
	}
	return pids
}

// UnmountBelow unmounts everything that is mounted below a directory, also what its filesystem no longer answers for.
func UnmountBelow(root string) error {
	var errs []error
	for range 3 { // mounts may be stacked
		info, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			return err
		}
		var points []string
		for line := range strings.Lines(string(info)) {
			fields := strings.Fields(line)
			if len(fields) > 4 && strings.HasPrefix(fields[4], root+"/") {
				points = append(points, unescape.Replace(fields[4]))
			}
		}
		if len(points) == 0 {
			return nil
		}
		errs = nil
		for _, p := range slices.Backward(points) {
			if err := syscall.Unmount(p, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
				errs = append(errs, fmt.Errorf("unmounting %s: %w", p, err))
			}
		}
	}
	return errors.Join(errs...)
}

var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// removeCgroups removes the emptied cgroups of a node in all hierarchies. One is busy for a moment after its last process
// was killed, and how long cannot be seen: such a process has nothing in /proc any more that tells whose it is.
func removeCgroups(parent string) error {
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := removeCgroupsOnce(parent)
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func removeCgroupsOnce(parent string) error {
	hierarchies, err := filepath.Glob("/sys/fs/cgroup/*" + parent)
	if err != nil {
		return err
	}
	var errs []error
	for _, top := range append(hierarchies, "/sys/fs/cgroup"+parent) {
		var dirs []string
		_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, d := range slices.Backward(dirs) {
			// Hierarchies may be mounted twice, so that one may be gone already.
			if err := syscall.Rmdir(d); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("removing %s: %w", d, err))
			}
		}
	}
	return errors.Join(errs...)
}

// TempDir makes a directory with a short name, which [Sweep] takes away if this process dies before it could.
func TempDir() (string, error) {
	return os.MkdirTemp("", rootPrefix+strconv.Itoa(os.Getpid())+"-")
}

// Sweep cleans up after processes that died before they could.
func Sweep() error {
	roots, err := filepath.Glob(filepath.Join(os.TempDir(), rootPrefix+"*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		owner, _, ok := strings.Cut(strings.TrimPrefix(filepath.Base(root), rootPrefix), "-")
		pid, err := strconv.Atoi(owner)
		if !ok || err != nil || pid == os.Getpid() {
			continue
		}
		if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
			errs = append(errs, cleanup(root, true))
		}
	}
	return errors.Join(errs...)
}
