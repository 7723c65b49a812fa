package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// Main runs the tests of a package in a mount namespace of its own, see [Isolate], and exits.
func Main(m *testing.M) {
	err := Check()
	if err == nil {
		err = Isolate()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	testkit.Main(m)
}

const isolated = "IMAGEPIN_POWER_ISOLATED"

// Isolate runs this process again in its own mount namespace, and exits with its exit code. In that process it returns. No
// other process of the machine then has its mounts, and the kernel removes them when it ends, in whatever way.
func Isolate() error {
	if os.Getenv(isolated) != "" {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the death signal is sent when this thread ends
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), isolated+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("a mount namespace of its own: %w", err)
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s)
		}
	}()
	err = cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	os.Exit(max(cmd.ProcessState.ExitCode(), 0) + killed(cmd.ProcessState))
	return nil
}

// killed returns the exit code of a process that a signal has killed, or 0.
func killed(s *os.ProcessState) int {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return 0
}
