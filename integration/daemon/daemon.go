// Package daemon runs the processes that tests need in addition to containerd, such as a snapshotter or a kubelet.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Daemon is a background process.
type Daemon struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// Start starts a command in the background and appends its output to the file log. The command is killed if this
// process dies.
func Start(cmd *exec.Cmd, log string) (*Daemon, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	// In its own process group, the process does not get Ctrl-C, so that the caller can clean up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	d := &Daemon{name: filepath.Base(cmd.Path), log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The process gets the death signal if the thread that started it exits, so this thread waits for the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			d.err = cmd.Wait()
			close(d.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return d, nil
}

// PID returns the ID of the process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Wait waits until the process has exited by itself and returns its error. If the context ends before, it kills the process.
func (d *Daemon) Wait(ctx context.Context) error {
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), d.Kill9())
	}
}

// Kill9 kills the process with SIGKILL and waits until it has exited.
func (d *Daemon) Kill9() error { return d.end(syscall.SIGKILL) }

// Stop stops the process with SIGTERM and waits until it has exited.
func (d *Daemon) Stop() error { return d.end(syscall.SIGTERM) }

func (d *Daemon) end(sig syscall.Signal) error {
	if err := d.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case <-d.done:
		return nil
	case <-t.C:
		_ = d.cmd.Process.Kill()
		<-d.done
		return fmt.Errorf("%s did not exit within 30s of %s", d.name, sig)
	}
}

// Await waits until ready returns no error. It fails early if the process exits. The error has the end of the log.
func (d *Daemon) Await(ctx context.Context, ready func(context.Context) error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-d.done:
			return fmt.Errorf("%s exited while starting: %v\n%s", d.name, d.err, d.LogTail(30))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %v\n%s", d.name, context.Cause(ctx), last, d.LogTail(30))
		}
	}
}

// LogTail returns the last lines of the log.
func (d *Daemon) LogTail(lines int) string {
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
