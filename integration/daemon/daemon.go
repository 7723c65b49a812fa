// Package daemon runs the other real parts that a containerd under test works with, such as a snapshotter or a kubelet.
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

// Daemon is a process that runs until it is ended.
type Daemon struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
	err  error // set when done is closed
}

// Start runs a command in the background, its output appended to the file log. It dies with this process.
func Start(cmd *exec.Cmd, log string) (*Daemon, error) {
	f, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	cmd.Stdout, cmd.Stderr = f, f
	// A group of its own keeps Ctrl-C for the caller, who cleans up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	d := &Daemon{name: filepath.Base(cmd.Path), log: log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The death signal is tied to the thread that started the process, so that thread waits for it.
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

// Kill9 ends it at once with SIGKILL and waits until it is gone.
func (d *Daemon) Kill9() error { return d.end(syscall.SIGKILL) }

// Stop ends it with SIGTERM and waits until it is gone.
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
		return fmt.Errorf("%s did not end within 30s of %s", d.name, sig)
	}
}

// Await waits until ready gives no error; it fails early if the process ends. The error has the end of its log.
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
			return fmt.Errorf("%s ended while starting: %v\n%s", d.name, d.err, d.LogTail(30))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %v\n%s", d.name, context.Cause(ctx), last, d.LogTail(30))
		}
	}
}

// LogTail is the end of its log.
func (d *Daemon) LogTail(lines int) string {
	b, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
