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

// rootPrefix and the process ID begin the name of a temporary root, so that [Sweep] finds the roots of killed
// processes.
const rootPrefix = "imagepin-"

// Close kills containerd, its shims and its containers, unmounts everything below the root, and removes the node's
// cgroups and a temporary root. You can call it in any state and more than once.
func (n *Node) Close() error {
	return errors.Join(n.Kill9(), cleanup(n.root, n.ownsRoot))
}

// PowerLoss ends everything that runs on the node, as a power loss does: containerd, its shims and its containers. It removes
// what is not on a disk: mounts, cgroups, and the state directories of containerd and runc. Unlike a real power loss, it does
// not lose writes that are not synchronized. [Node.Start] starts the node again.
func (n *Node) PowerLoss() error {
	errs := []error{n.Kill9(), cleanup(n.root, false)}
	for _, dir := range []string{"state", "runc"} {
		errs = append(errs, os.RemoveAll(n.Path(dir)))
	}
	return errors.Join(append(errs, os.Mkdir(n.Path("state"), 0o711))...)
}

// Cgroup returns the cgroup of the node. [Node.Close] kills all processes below it and removes it.
func (n *Node) Cgroup() string { return cgroupParent(n.root) }

// cgroupParent returns the cgroup of a node's pods. It has the name of the root, so that it identifies the node.
func cgroupParent(root string) string { return "/" + filepath.Base(root) }

// cleanup removes everything that is left of a node whose containerd has exited. It needs only the root to find it.
func cleanup(root string, removeRoot bool) error {
	var errs []error
	// Repeat until no process is left: the list may lack a shim that has just been forked.
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
			errs = append(errs, fmt.Errorf("processes %v of %s do not exit", pids, root))
			break
		}
		// They are not children of this process, so it cannot wait for them.
		time.Sleep(2 * time.Millisecond)
	}
	if err := UnmountBelow(root); err != nil {
		errs = append(errs, err)
	}
	if err := removeCgroups(cgroupParent(root)); err != nil {
		errs = append(errs, err)
	}
	if removeRoot {
		// A test may have mounted a filesystem of its own there. EINVAL: it is no mount point.
		if err := syscall.Unmount(root, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("unmounting %s: %w", root, err))
		}
		if err := os.RemoveAll(root); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// processes returns the IDs of a node's shims and runcs, which it finds by their command line, and of the processes in
// the node's cgroup.
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
			continue // a zombie or a kernel thread
		}
		args := strings.Split(string(cmdline), "\x00")
		shim := strings.Contains(args[0], "containerd-shim") && slices.Contains(args, filepath.Join(root, "containerd.sock"))
		// A runc that still runs after containerd has the root in its arguments.
		runc := filepath.Base(args[0]) == "runc" && slices.Contains(args, filepath.Join(root, "runc", Namespace))
		cgroups, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup"))
		inside := strings.Contains(string(cgroups), ":"+cgroupParent(root)+"/")
		if shim || runc || inside {
			pids = append(pids, pid)
		}
	}
	return pids
}

// UnmountBelow unmounts everything below a directory, even if a filesystem does not respond.
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

// removeCgroups removes the empty cgroups of a node in all hierarchies. It retries, because a cgroup is busy for a
// moment after its last process was killed, and /proc does not show such a process as one of the node's.
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
			// The cgroup may be removed already, because hierarchies may be mounted twice.
			if err := syscall.Rmdir(d); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("removing %s: %w", d, err))
			}
		}
	}
	return errors.Join(errs...)
}

// TempDir creates a directory with a short name. [Sweep] removes it if this process dies before it does.
func TempDir() (string, error) {
	return os.MkdirTemp("", rootPrefix+strconv.Itoa(os.Getpid())+"-")
}

// Sweep cleans up the roots of processes that died before they did.
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
