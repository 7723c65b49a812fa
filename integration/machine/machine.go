// Package machine runs a Debian with systemd, in which tests install packages. It boots from Debian's files in its own
// namespaces and cgroups, and writes to a directory of the test. It shares the host's network, to reach a registry of
// the test.
package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

//go:embed boot.sh
var boot string

// Machine is a running machine.
type Machine struct {
	t   testing.TB
	dir string
	pid int // of its systemd, in the host's namespace
}

// Start boots a machine and waits until it is up. The machine stops at the end of the test.
func Start(t testing.TB) *Machine {
	t.Helper()
	lower, err := debianRoot()
	if err != nil {
		t.Fatal(err)
	}
	if err := node.Sweep(); err != nil {
		t.Fatal(err)
	}
	dir, err := node.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{t: t, dir: dir}
	t.Cleanup(m.clean)
	for _, d := range []string{"upper", "work", "root", "containerd"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	enter, err := MakeCgroups(filepath.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	// The shell enters the cgroups before unshare, so that they are the roots of the cgroup namespace.
	cmd := exec.Command("/bin/bash", "-c", enter+`exec unshare --mount --pid --fork --kill-child --uts --ipc --cgroup /bin/bash -c "$boot"`)
	cmd.Env = append(os.Environ(), "boot="+MountCgroups+boot, "lower="+lower, "dir="+dir, "root="+filepath.Join(dir, "root"))
	d, err := daemon.Start(cmd, filepath.Join(dir, "boot.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Kill9(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	up := func(ctx context.Context) error {
		if m.pid, err = systemdOf(cmd.Process.Pid); err != nil {
			return err
		}
		// The state is degraded if a unit of Debian does not work in a container.
		out, err := m.Try(ctx, "systemctl is-system-running")
		if s := strings.TrimSpace(out); s != "running" && s != "degraded" {
			return fmt.Errorf("systemd is %q: %w", s, err)
		}
		return nil
	}
	if err := d.Await(ctx, up); err != nil {
		t.Fatal(err)
	}
	return m
}

// debianRoot returns a root directory with Debian, and creates it if needed.
func debianRoot() (string, error) {
	cmd := exec.Command(filepath.Join(node.BinDir(), "..", "hack", "debian-root.sh"))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

// systemdOf returns the only child process of unshare, and an error if it is not systemd.
func systemdOf(unshare int) (int, error) {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", unshare, unshare))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	if err != nil {
		return 0, err
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err == nil && strings.TrimSpace(string(comm)) != "systemd" {
		err = fmt.Errorf("process %d is still %s", pid, comm)
	}
	return pid, err
}

// limit is the timeout of a script. It allows for a busy host.
const limit = 2 * time.Minute

// Run runs a bash script in the machine as root, and returns its standard output and error. It fails the test if the
// script fails.
func (m *Machine) Run(script string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(testkit.Context(m.t), limit)
	defer cancel()
	out, err := m.Try(ctx, script)
	if err != nil {
		m.t.Fatalf("%s\n%v\n%s\n%s", script, err, out, m.journal())
	}
	return out
}

// Try is [Machine.Run] for a script that may fail.
func (m *Machine) Try(ctx context.Context, script string) (string, error) {
	cmd := m.command(ctx, script)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m *Machine) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(m.pid), "--mount", "--pid", "--uts", "--ipc", "--cgroup",
		"/usr/bin/env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "PAGER=cat",
		"DEBIAN_FRONTEND=noninteractive", "/bin/bash", "-e", "-o", "pipefail", "-c", "cd /root; "+script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// Do not wait for background processes that keep the output open.
	cmd.WaitDelay = time.Second
	return cmd
}

// Eventually runs a script until it succeeds, and fails the test after a timeout.
func (m *Machine) Eventually(script string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(testkit.Context(m.t), limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := m.Try(ctx, script)
		if err == nil {
			return out
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			m.t.Fatalf("%s\nstill fails: %v\n%s\n%s", script, err, out, m.journal())
		}
	}
}

// journal returns the end of the machine's journal.
func (m *Machine) journal() string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, _ := m.Try(ctx, "journalctl --no-pager --output cat --lines 60 --unit imagepin.service --unit imagepin.socket --unit imagepin-install.service --unit kubelet.service --unit init.scope")
	return out
}

// WriteFile writes a file in the machine.
func (m *Machine) WriteFile(path, content string, mode os.FileMode) {
	m.t.Helper()
	m.put(path, bytes.NewReader([]byte(content)), mode)
}

// CopyFile copies a file of the host into the machine.
func (m *Machine) CopyFile(path, from string, mode os.FileMode) {
	m.t.Helper()
	f, err := os.Open(from)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	m.put(path, f, mode)
}

func (m *Machine) put(path string, content interface{ Read([]byte) (int, error) }, mode os.FileMode) {
	m.t.Helper()
	cmd := m.command(testkit.Context(m.t), fmt.Sprintf("mkdir -p %[1]q && cat >%[2]q && chmod %[3]o %[2]q", filepath.Dir(path), path, mode))
	cmd.Stdin = content
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("writing %s: %v\n%s", path, err, out)
	}
}

// Socket returns the path on the host of a socket in the machine.
func (m *Machine) Socket(path string) string {
	return fmt.Sprintf("/proc/%d/root%s", m.pid, path)
}

func (m *Machine) clean() {
	if m.t.Failed() {
		if log, err := os.ReadFile(filepath.Join(m.dir, "boot.log")); err == nil && len(log) > 0 {
			m.t.Logf("boot:\n%s", log)
		}
	}
	if err := errors.Join(RemoveCgroups(filepath.Base(m.dir)), node.UnmountBelow(m.dir), os.RemoveAll(m.dir)); err != nil {
		m.t.Errorf("cleaning up: %v", err)
	}
}
