package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// need is what some stages need of the machine.
type need struct {
	name string
	// check returns an error if the machine does not have it.
	check func() error
	// hint says how to get it.
	hint   string
	stages []string
}

// needs is what all stages need. A test compares what is downloaded with the Makefile.
var needs = []need{
	{"root", root, "run as root", []string{
		"test-integration", "test-kubelet", "test-serve", "test-packages", "test-cluster", "test-power", "test-unit", "test-race", "test-lazy",
		"test-versions", "test-peers", "check-bench",
	}},
	{"Debian", debian, "run in a Debian container", []string{
		"test-integration", "test-serve", "test-packages", "test-power", "test-unit", "test-versions", "test-peers",
	}},
	{"C compiler", programs("gcc"), "apt-get install gcc libc6-dev", []string{
		"test-integration", "test-kubelet", "test-serve", "test-packages", "test-cluster", "test-power", "test-unit", "test-race", "test-lazy",
		"test-versions", "test-peers",
	}},
	{"EROFS", filesystem("erofs"), "a kernel with CONFIG_EROFS_FS", []string{
		"test-integration", "test-serve", "test-packages", "test-power", "test-versions", "test-peers",
	}},
	{"FUSE", device("/dev/fuse"), "modprobe fuse, and in a container --privileged", []string{"test-kubelet", "test-power", "test-lazy"}},
	{"loop devices", device("/dev/loop-control"), "modprobe loop, and in a container --privileged", []string{
		"test-integration", "test-kubelet", "test-serve", "test-power",
	}},
	{"ext4", all(filesystem("ext4"), programs("mkfs.ext4")), "apt-get install e2fsprogs, and a kernel with CONFIG_EXT4_FS", []string{
		"test-integration", "test-kubelet", "test-serve", "test-power",
	}},
	{"namespaces", programs("unshare", "nsenter", "mount"), "apt-get install util-linux mount", []string{
		"test-integration", "test-kubelet", "test-serve", "test-packages", "test-cluster", "test-power", "test-race", "test-lazy", "test-versions", "test-peers",
	}},
	// This is an estimate, for up to twelve nodes at a time with a kubelet and a containerd each, an API server and etcd.
	{"memory", memory(4), "a larger machine, or fewer other processes", []string{"test-kubelet", "test-cluster"}},
}

// missing returns what the machine lacks with the stages that need it, and an error if one of them is not left out.
func missing(needs []need, planned, leftOut []string) (string, error) {
	for _, s := range leftOut {
		if !slices.Contains(planned, s) {
			return "", fmt.Errorf("WITHOUT has %q, which is not a stage of this run (%s)", s, strings.Join(planned, " "))
		}
	}
	var b strings.Builder
	var cost []string
	for _, n := range needs {
		stages := intersection(planned, n.stages)
		if len(stages) == 0 {
			continue
		}
		err := n.check()
		if err == nil {
			continue
		}
		if b.Len() == 0 {
			b.WriteString("This machine lacks:\n")
		}
		fmt.Fprintf(&b, "  %s: %v (%s)\n    needed by %s\n", n.name, err, n.hint, strings.Join(stages, " "))
		cost = append(cost, stages...)
	}
	cost = intersection(planned, cost)
	if len(intersection(cost, leftOut)) == len(cost) {
		return b.String(), nil
	}
	if len(cost) == len(planned) {
		return b.String(), errors.New("no stage can run on this machine")
	}
	without := intersection(planned, slices.Concat(cost, leftOut))
	return b.String(), fmt.Errorf("to run what this machine can run: make test WITHOUT='%s'", strings.Join(without, " "))
}

// intersection returns what both lists have, in the order of the first one.
func intersection(a, b []string) []string {
	var both []string
	for _, s := range a {
		if slices.Contains(b, s) {
			both = append(both, s)
		}
	}
	return both
}

func root() error {
	if uid := os.Geteuid(); uid != 0 {
		return fmt.Errorf("the user ID is %d", uid)
	}
	return nil
}

// debian checks what hack/debian-apt.sh and hack/debian-root.sh use. Derivatives of Debian have it, or can install it.
func debian() error {
	if err := programs("apt-get", "dpkg", "dpkg-deb")(); err != nil {
		return err
	}
	_, err := os.Stat("/usr/share/keyrings/debian-archive-keyring.gpg")
	return err
}

func programs(names ...string) func() error {
	return func() error {
		for _, name := range names {
			if _, err := exec.LookPath(name); err != nil {
				return err
			}
		}
		return nil
	}
}

func device(path string) func() error {
	return func() error {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return err
	}
}

// filesystem checks that the kernel has a file system, and loads its module.
func filesystem(name string) func() error {
	return func() error {
		if known(name, "/proc/filesystems") {
			return nil
		}
		if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe %s: %w %s", name, err, strings.TrimSpace(string(out)))
		}
		if !known(name, "/proc/filesystems") {
			return errors.New("not in /proc/filesystems")
		}
		return nil
	}
}

func known(name, list string) bool {
	text, err := os.ReadFile(list)
	return err == nil && slices.Contains(strings.Fields(string(text)), name)
}

// memory checks that some GiB of memory are available.
func memory(gib int) func() error {
	return func() error {
		f, err := os.Open("/proc/meminfo")
		if err != nil {
			return err
		}
		defer f.Close()
		kib, err := available(f)
		if err != nil {
			return err
		}
		if kib < gib<<20 {
			return fmt.Errorf("%d MiB are available, and %d are needed", kib>>10, gib<<10)
		}
		return nil
	}
}

// available returns MemAvailable of /proc/meminfo, in KiB.
func available(meminfo io.Reader) (int, error) {
	for s := bufio.NewScanner(meminfo); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) == 3 && f[0] == "MemAvailable:" {
			return strconv.Atoi(f[1])
		}
	}
	return 0, errors.New("no MemAvailable in /proc/meminfo")
}

func all(checks ...func() error) func() error {
	return func() error {
		for _, c := range checks {
			if err := c(); err != nil {
				return err
			}
		}
		return nil
	}
}
