package lazy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/node"
)

// SnapshotterName is the name of the lazy snapshotter in containerd.
const SnapshotterName = "stargz"

// Snapshotter is a lazily pulling snapshotter, a process beside a containerd. It is started before that and ended after it:
// containers are mounted on what it mounts.
type Snapshotter struct {
	dir string
	d   *daemon.Daemon // nil before the first start
}

// NewSnapshotter makes a snapshotter with its directory, without starting it.
func NewSnapshotter() (*Snapshotter, error) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("the lazy snapshotter needs FUSE: %w", err)
	}
	// Short: a socket is in it.
	dir, err := node.TempDir()
	if err != nil {
		return nil, err
	}
	return &Snapshotter{dir: dir}, nil
}

// Dir is where it keeps everything. It reads Docker's configuration there, for credentials.
func (s *Snapshotter) Dir() string { return s.dir }

// Address is its socket.
func (s *Snapshotter) Address() string { return filepath.Join(s.dir, "sock") }

// Containerd is where it looks for containerd's socket, to pass image calls on to it.
func (s *Snapshotter) Containerd() string { return filepath.Join(s.dir, "containerd.sock") }

// Config is what containerd has to know of it, as TOML for [node.Options].
func (s *Snapshotter) Config() string {
	return fmt.Sprintf(`
[proxy_plugins.%s]
  type = "snapshot"
  address = %q
  [proxy_plugins.%s.exports]
    root = %q
    enable_remote_snapshot_annotations = "true"
`, SnapshotterName, s.Address(), SnapshotterName, filepath.Join(s.dir, "snapshotter"))
}

// Start runs it (again) and waits until it can be called.
func (s *Snapshotter) Start(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(node.BinDir(), "stargz-snapshotter"), "--root", s.dir, "--address", s.Address(), "--containerd", s.Containerd())
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+s.dir)
	var err error
	if s.d, err = daemon.Start(cmd, filepath.Join(s.dir, "log")); err != nil {
		return fmt.Errorf("starting the snapshotter: %w (hack/lazy-binaries.sh builds it)", err)
	}
	return s.d.Await(ctx, func(context.Context) error {
		c, err := net.Dial("unix", s.Address())
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// Stop ends it with SIGTERM.
func (s *Snapshotter) Stop() error { return s.d.Stop() }

// Kill9 ends it at once with SIGKILL. What it had mounted cannot be read any more.
func (s *Snapshotter) Kill9() error { return s.d.Kill9() }

// LogTail is the end of its log.
func (s *Snapshotter) LogTail(lines int) string {
	if s.d == nil {
		return ""
	}
	return s.d.LogTail(lines)
}

// Close ends it and removes what it mounted and wrote.
func (s *Snapshotter) Close() error {
	var err error
	if s.d != nil {
		err = s.d.Kill9()
	}
	return errors.Join(err, node.UnmountBelow(s.dir), os.RemoveAll(s.dir))
}
