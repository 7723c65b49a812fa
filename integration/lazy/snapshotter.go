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

// Snapshotter is a process with a lazy snapshotter. Start it before containerd and stop it after containerd, because
// containers use its mounts.
type Snapshotter struct {
	// Background makes it fetch the rest of a layer in the background, and what the layer marks for prefetching at once,
	// as its own defaults do. Without that, requests to the registry show what was read.
	Background bool

	dir string
	d   *daemon.Daemon // nil before the first start
}

// NewSnapshotter creates a snapshotter and its directory, and does not start it.
func NewSnapshotter() (*Snapshotter, error) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, fmt.Errorf("the lazy snapshotter needs FUSE: %w", err)
	}
	// The path is short, because it contains a socket.
	dir, err := node.TempDir()
	if err != nil {
		return nil, err
	}
	return &Snapshotter{dir: dir}, nil
}

// Dir returns the directory of all its files. It reads Docker's configuration with credentials there.
func (s *Snapshotter) Dir() string { return s.dir }

// Address returns the path of its socket.
func (s *Snapshotter) Address() string { return filepath.Join(s.dir, "sock") }

// Containerd returns the path at which it expects containerd's socket, to which it forwards image calls.
func (s *Snapshotter) Containerd() string { return filepath.Join(s.dir, "containerd.sock") }

// Config returns containerd's configuration for it, as TOML for [node.Options].
func (s *Snapshotter) Config() string {
	return s.config("", "enable_remote_snapshot_annotations = \"true\"")
}

// SilentConfig is Config of a snapshotter that does not export that it fetches lazily, with the capability that layers
// can be unpacked in parallel. It gets annotations only with disable_snapshot_annotations = false.
func (s *Snapshotter) SilentConfig() string { return s.config("capabilities = [\"rebase\"]", "") }

func (s *Snapshotter) config(entry, export string) string {
	return fmt.Sprintf(`
[proxy_plugins.%s]
  type = "snapshot"
  address = %q
  %s
  [proxy_plugins.%s.exports]
    root = %q
    %s
`, SnapshotterName, s.Address(), entry, SnapshotterName, filepath.Join(s.dir, "snapshotter"), export)
}

// Start starts or restarts it, and waits until its socket accepts connections.
func (s *Snapshotter) Start(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(node.BinDir(), "stargz-snapshotter"), "--root", s.dir, "--address", s.Address(), "--containerd", s.Containerd(),
		fmt.Sprintf("--background=%t", s.Background))
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

// Stop stops it with SIGTERM.
func (s *Snapshotter) Stop() error { return s.d.Stop() }

// Kill9 kills it with SIGKILL. Its mounts become unreadable.
func (s *Snapshotter) Kill9() error { return s.d.Kill9() }

// LogTail returns the last lines of its log.
func (s *Snapshotter) LogTail(lines int) string {
	if s.d == nil {
		return ""
	}
	return s.d.LogTail(lines)
}

// Close kills it and removes its mounts and files.
func (s *Snapshotter) Close() error {
	var err error
	if s.d != nil {
		err = s.d.Kill9()
	}
	return errors.Join(err, node.UnmountBelow(s.dir), os.RemoveAll(s.dir))
}
