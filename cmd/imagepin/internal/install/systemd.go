//go:build unix

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
)

// Units of the node.
const (
	containerdUnit = "containerd.service"
	kubeletUnit    = "kubelet.service"
	serviceUnit    = "imagepin.service"
	socketUnit     = "imagepin.socket"
	applyUnit      = "imagepin-install.service"
)

// systemd is a connection to the node's systemd.
type systemd struct {
	*dbus.Conn
	socket string
}

// openSystemd connects to systemd's private socket, which works from a container without the node's D-Bus. systemd does not
// answer while it reads its units again, which takes seconds on a node with many.
func openSystemd(ctx context.Context, socket string) (s *systemd, _ error) {
	if _, err := os.Stat(socket); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectLimit)
	defer cancel()
	err := await(ctx, func(ctx context.Context) (err error) {
		s, err = connectSystemd(ctx, socket)
		return err
	})
	return s, err
}

// connectSystemd tries to connect once.
func connectSystemd(ctx context.Context, socket string) (*systemd, error) {
	// The connection lives longer than ctx. A systemd that executes itself again may accept it and never answer.
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	limited, done := context.WithTimeout(ctx, connectLimit)
	defer done()
	stop := context.AfterFunc(limited, cancel)
	defer stop()
	conn, err := dbus.NewConnection(func() (*godbus.Conn, error) {
		c, err := godbus.Dial("unix:path="+socket, godbus.WithContext(life))
		if err != nil {
			return nil, err
		}
		if err := c.Auth([]godbus.Auth{godbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		return c, nil
	})
	if err != nil {
		cancel()
		return nil, fmt.Errorf("systemd on %s: %w", socket, cmp.Or(context.Cause(limited), err))
	}
	return &systemd{conn, socket}, nil
}

// connectLimit is how long systemd may take to answer one try, and reconnectLimit how long to execute itself again.
const (
	connectLimit   = 3 * time.Second
	reconnectLimit = 30 * time.Second
)

// reconnect connects again if the connection is lost: systemd closes it when it executes itself again, as in its upgrade.
func (s *systemd) reconnect(ctx context.Context) error {
	if s.Connected() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, reconnectLimit)
	defer cancel()
	return await(ctx, func(ctx context.Context) error {
		now, err := connectSystemd(ctx, s.socket)
		if err != nil {
			return err
		}
		s.Close()
		s.Conn = now.Conn
		return nil
	})
}

// call calls systemd, and again if the connection is lost. The call must be one that can be repeated.
func (s *systemd) call(ctx context.Context, what string, call func() error) error {
	for {
		if err := s.reconnect(ctx); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		err := call()
		if err == nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) || errors.Is(err, godbus.ErrClosed) {
			s.Close()
		}
		if s.Connected() || ctx.Err() != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// reload lets systemd read the units again.
func (s *systemd) reload(ctx context.Context) error {
	return s.call(ctx, "reload systemd", func() error { return s.ReloadContext(ctx) })
}

// stop stops a unit, and waits until it has stopped.
func (s *systemd) stop(ctx context.Context, unit string) error {
	return s.job(ctx, "stop", unit, (*dbus.Conn).StopUnitContext)
}

// start starts a unit, and waits until it has started.
func (s *systemd) start(ctx context.Context, unit string) error {
	return s.job(ctx, "start", unit, (*dbus.Conn).StartUnitContext)
}

// resetFailed lets systemd start a unit that has ended too often.
func (s *systemd) resetFailed(ctx context.Context, unit string) {
	_ = s.ResetFailedUnitContext(ctx, unit) // fails if systemd does not have the unit in memory
}

// job lets systemd begin a job of a unit, and waits for its result. If the connection is lost, it begins it again.
func (s *systemd) job(ctx context.Context, verb, unit string, start func(*dbus.Conn, context.Context, string, string, chan<- string) (int, error)) error {
	for {
		var done chan string
		err := s.call(ctx, verb+" "+unit, func() error {
			done = make(chan string, 1)
			_, err := start(s.Conn, ctx, unit, "replace", done)
			return err
		})
		if err != nil {
			return err
		}
		switch result, err := s.result(ctx, done); {
		case err != nil:
			return fmt.Errorf("%s %s: %w", verb, unit, err)
		case result == "done":
			return nil
		case result != "":
			return fmt.Errorf("%s %s: the result of the job is %q", verb, unit, result)
		}
	}
}

// result waits for the result of a job. It is empty if the connection is lost.
func (s *systemd) result(ctx context.Context, done <-chan string) (string, error) {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		select {
		case result := <-done:
			return result, nil
		case <-tick.C:
			if !s.Connected() {
				return "", nil
			}
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// active reports whether a unit runs, is about to, or is about to stop.
func (s *systemd) active(ctx context.Context, unit string) (bool, error) {
	u, err := s.unit(ctx, unit)
	return err == nil && u.state != "inactive" && u.state != "failed", err
}

// unit is what systemd knows of a service.
type unit struct {
	loaded    bool
	state     string // active, activating, …
	pid       int    // of the main process; 0 if it does not run
	execStart []string
	// files are the unit file, its drop-ins and its environment files.
	files []string
	// requiredBy are the units that systemd stops with this one, and does not start if it fails to start. They need not run.
	requiredBy []string
}

func (s *systemd) unit(ctx context.Context, name string) (u unit, _ error) {
	var all map[string]any
	err := s.call(ctx, "properties of "+name, func() (err error) {
		all, err = s.GetAllPropertiesContext(ctx, name)
		return err
	})
	if err != nil {
		return u, err
	}
	u.loaded = all["LoadState"] == "loaded"
	u.state, _ = all["ActiveState"].(string)
	for _, name := range []string{"RequiredBy", "RequisiteOf", "BoundBy"} {
		units, _ := all[name].([]string)
		u.requiredBy = append(u.requiredBy, units...)
	}
	if pid, ok := all["MainPID"].(uint32); ok {
		u.pid = int(pid)
	}
	// a(sasbttttuii): path, arguments, …
	if commands, ok := all["ExecStart"].([][]any); ok && len(commands) > 0 && len(commands[0]) > 1 {
		u.execStart, _ = commands[0][1].([]string)
	}
	if path, ok := all["FragmentPath"].(string); ok && path != "" {
		u.files = append(u.files, path)
	}
	if paths, ok := all["DropInPaths"].([]string); ok {
		u.files = append(u.files, paths...)
	}
	// a(sb): path, whether it may be missing.
	if environment, ok := all["EnvironmentFiles"].([][]any); ok {
		for _, e := range environment {
			if path, ok := e[0].(string); ok {
				u.files = append(u.files, path)
			}
		}
	}
	return u, nil
}

// run runs a command as a service, and waits until it has ended.
func (s *systemd) run(ctx context.Context, unit, description string, command []string, more ...dbus.Property) error {
	s.resetFailed(ctx, unit)
	properties := append([]dbus.Property{
		dbus.PropDescription(description), dbus.PropExecStart(command, false),
		property("CollectMode", "inactive-or-failed"),
	}, more...)
	started := make(chan string, 1)
	if _, err := s.StartTransientUnitContext(ctx, unit, "fail", properties, started); err != nil {
		return fmt.Errorf("start %s: %w", unit, err)
	}
	result, err := s.result(ctx, started)
	if err == nil && result != "" && result != "done" {
		err = fmt.Errorf("%s: the result of the job is %q", unit, result)
	}
	return err
}

func property(name string, value any) dbus.Property {
	return dbus.Property{Name: name, Value: godbus.MakeVariant(value)}
}
