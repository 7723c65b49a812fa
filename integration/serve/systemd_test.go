package serve

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
)

func itoa(n int) string { return strconv.Itoa(n) }

// manager is a service manager that records notifications.
type manager struct {
	conn     *net.UnixConn
	mu       sync.Mutex
	received []string
}

func newManager(t *testing.T, path string) *manager {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	m := &manager{conn: conn}
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			m.mu.Lock()
			m.received = append(m.received, strings.Split(string(b[:n]), "\n")...)
			m.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return m
}

// send sends a notification. The manager receives it after all that were sent before.
func (m *manager) send(state string) error {
	conn, err := net.DialUnix("unixgram", nil, m.conn.LocalAddr().(*net.UnixAddr))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte(state))
	return err
}

// all returns the notifications since the last call of reset.
func (m *manager) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.received)
}

func (m *manager) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.received = nil
}

// has returns a function that reports whether a notification has a prefix.
func (m *manager) has(prefix string) func() bool {
	return func() bool {
		return slices.ContainsFunc(m.all(), func(s string) bool { return strings.HasPrefix(s, prefix) })
	}
}

// TestNotify checks the notifications that imagepin serve sends to systemd.
func TestNotify(t *testing.T) {
	t.Parallel()
	dir, err := node.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify.sock")
	m := newManager(t, path)
	r := newRig(t, node.Options{NoPods: true, Env: []string{"NOTIFY_SOCKET=" + path}})

	// containerd starts later without NOTIFY_SOCKET, because it sends notifications too.
	r.must(r.StartServe())
	r.eventually("serve extends its start timeout to wait for containerd", m.has("EXTEND_TIMEOUT_USEC="))
	if !m.has("STATUS=waiting for containerd on " + r.ContainerdAddress())() {
		t.Errorf("got %q, want a status that names containerd's socket", m.all())
	}
	if m.has("READY=1")() {
		t.Errorf("got %q, want no READY=1 without containerd", m.all())
	}
	r.must(r.Prepare(func(o *node.Options) { o.Env = nil }))
	r.must(r.StartContainerd())
	r.eventually("serve is ready", m.has("READY=1"))
	r.eventually("the status has containerd's version", m.has("STATUS=serving images of containerd v"))

	m.reset()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.eventually("serve is ready after a reload", m.has("READY=1"))
	got := m.all()
	reloading := slices.Index(got, "RELOADING=1")
	if reloading < 0 || !strings.HasPrefix(got[reloading+1], "MONOTONIC_USEC=") || slices.Index(got, "READY=1") < reloading {
		t.Errorf("reload: got notifications %q", got)
	}

	m.reset()
	r.must(r.Prepare(func(o *node.Options) { o.Extra = ownSection + "no_such_key = 1\n" }))
	r.must(r.SignalServe(syscall.SIGHUP))
	r.eventually("serve is ready after a failed reload", m.has("READY=1"))
	r.eventually("the status has the error", func() bool {
		return slices.ContainsFunc(m.all(), func(s string) bool { return strings.HasPrefix(s, "STATUS=") && strings.Contains(s, "no_such_key") })
	})

	m.reset()
	r.must(r.EndServe(syscall.SIGTERM))
	// The process has exited, but its last notification may not have been read from the socket.
	r.must(m.send("LAST=1"))
	r.eventually("all notifications are read", m.has("LAST=1"))
	if !m.has("STOPPING=1")() {
		t.Errorf("stop: got notifications %q, want STOPPING=1", m.all())
	}
}

// TestSocketActivation passes a socket to imagepin serve, as systemd does. The socket accepts calls during a
// restart.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true})
	r.must(r.StartContainerd())
	path := r.Path("activated.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	r.must(err)
	defer l.Close()
	f, err := l.File()
	r.must(err)
	defer f.Close()
	start := func() *daemon.Daemon {
		t.Helper()
		// LISTEN_PID is the process's own ID, so a shell sets it before exec.
		cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ exec "$0" serve --config "$1"`, filepath.Join(node.BinDir(), "imagepin"), r.ServeConfig())
		cmd.Env = append(os.Environ(), "LISTEN_FDS=1")
		cmd.ExtraFiles = []*os.File{f}
		d, err := daemon.Start(cmd, r.LogFile())
		r.must(err)
		return d
	}
	call := func() error {
		conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
		r.must(err)
		defer conn.Close()
		ctx, cancel := context.WithTimeout(r.Ctx, soon)
		defer cancel()
		_, err = cri.NewImageServiceClient(conn).ListImages(ctx, &cri.ListImagesRequest{})
		return err
	}
	d := start()
	ctx, cancel := context.WithTimeout(r.Ctx, soon)
	defer cancel()
	r.must(d.Await(ctx, func(context.Context) error { return call() }))
	if _, err := os.Stat(r.Address()); !os.IsNotExist(err) {
		t.Errorf("serve created its own socket too: %v", err)
	}
	r.must(d.Stop())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("passed socket after the stop: %v", err)
	}
	// No process accepts this connection before the next start.
	early, err := net.DialTimeout("unix", path, 5*time.Second)
	r.must(err)
	defer early.Close()
	answered := make(chan error, 1)
	go func() { answered <- call() }()
	d = start()
	defer func() { _ = d.Stop() }()
	for err := range answered {
		// imagepin may refuse a call while it connects to containerd, but the socket accepts it.
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "imagepin: ") {
			t.Fatalf("a call during the restart: %v", err)
		}
		go func() { answered <- call() }()
	}
}
