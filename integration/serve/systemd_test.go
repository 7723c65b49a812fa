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

// manager is what a service manager hears.
type manager struct {
	conn  *net.UnixConn
	mu    sync.Mutex
	heard []string
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
			m.heard = append(m.heard, strings.Split(string(b[:n]), "\n")...)
			m.mu.Unlock()
		}
	}()
	t.Cleanup(func() { _ = conn.Close(); <-done })
	return m
}

// all is what was heard since the last call of forget.
func (m *manager) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.heard)
}

func (m *manager) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = nil
}

func (m *manager) hears(prefix string) func() bool {
	return func() bool {
		return slices.ContainsFunc(m.all(), func(s string) bool { return strings.HasPrefix(s, prefix) })
	}
}

// TestNotify listens to what imagepin serve tells systemd.
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

	// containerd tells it too, so it is started without.
	r.must(r.StartServe())
	r.eventually("it asks for time to wait for containerd", m.hears("EXTEND_TIMEOUT_USEC="))
	if !m.hears("STATUS=waiting for containerd on " + r.ContainerdAddress())() {
		t.Errorf("it does not say what it waits for: %q", m.all())
	}
	if m.hears("READY=1")() {
		t.Errorf("it is ready without containerd: %q", m.all())
	}
	r.must(r.Prepare(func(o *node.Options) { o.Env = nil }))
	r.must(r.StartContainerd())
	r.eventually("it is ready", m.hears("READY=1"))
	r.eventually("its status has containerd's version", m.hears("STATUS=serving images of containerd v"))

	m.forget()
	r.must(r.SignalServe(syscall.SIGHUP))
	r.eventually("it is ready after a reload", m.hears("READY=1"))
	heard := m.all()
	reloading := slices.Index(heard, "RELOADING=1")
	if reloading < 0 || !strings.HasPrefix(heard[reloading+1], "MONOTONIC_USEC=") || slices.Index(heard, "READY=1") < reloading {
		t.Errorf("of a reload it tells %q", heard)
	}

	m.forget()
	r.must(r.Prepare(func(o *node.Options) { o.Extra = ownSection + "no_such_key = 1\n" }))
	r.must(r.SignalServe(syscall.SIGHUP))
	r.eventually("it is ready after a reload that failed", m.hears("READY=1"))
	r.eventually("its status says why", func() bool {
		return slices.ContainsFunc(m.all(), func(s string) bool { return strings.HasPrefix(s, "STATUS=") && strings.Contains(s, "no_such_key") })
	})

	m.forget()
	r.must(r.EndServe(syscall.SIGTERM))
	if !m.hears("STOPPING=1")() {
		t.Errorf("of its stop it tells %q", m.all())
	}
}

// TestSocketActivation gives imagepin serve its socket, as systemd does, and restarts it: nobody who calls meanwhile is turned away.
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
		// The variable has the process's own ID, which only the process knows before it runs.
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
		t.Errorf("it has made a socket of its own too: %v", err)
	}
	r.must(d.Stop())
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the socket that it was given: %v", err)
	}
	// Nobody accepts this connection until it is started again.
	early, err := net.DialTimeout("unix", path, 5*time.Second)
	r.must(err)
	defer early.Close()
	answered := make(chan error, 1)
	go func() { answered <- call() }()
	d = start()
	defer func() { _ = d.Stop() }()
	for err := range answered {
		// It is the containerd that may not be reached yet, not the socket.
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "imagepin: ") {
			t.Fatalf("a call during the restart: %v", err)
		}
		go func() { answered <- call() }()
	}
}
