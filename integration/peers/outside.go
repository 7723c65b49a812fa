// Package peers runs the tests of peers: containerd's tests of its CRI and of its client, and critest. Each suite runs with stock
// containerd and with imagepin, in namespaces of its own, which have the registries that the suite names on their loopback
// interface.
package peers

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/daemon"
	"github.com/imagepin/imagepin/integration/machine"
	"github.com/imagepin/imagepin/integration/node"
)

//go:embed inside.sh
var script string

// leaveRoot creates the other namespaces. In version 2, only a cgroup without processes can have controllers for the cgroups below,
// so the shell leaves the root of the cgroup namespace before.
const leaveRoot = `set -e
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
    init=/sys/fs/cgroup/$(basename "$dir")/init
    mkdir "$init"
    echo $$ >"$init/cgroup.procs"
fi
exec unshare --mount --pid --fork --kill-child --uts --ipc --net /bin/bash -c "$script"
`

// start runs a job in new namespaces. It writes the files of the suite and of containerd to a directory: output,
// report.xml and containerd.log.
func start(ctx context.Context, j job, to string) (err error) {
	if err := node.Sweep(); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := node.TempDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "hosts"), hostsFile(), 0o644); err != nil {
		return err
	}
	enter, err := machine.MakeCgroups(filepath.Base(dir))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, machine.RemoveCgroups(filepath.Base(dir))) }()
	text, err := json.Marshal(j)
	if err != nil {
		return err
	}
	// The shell enters the cgroups before unshare, so that they are the roots of the cgroup namespace.
	cmd := exec.Command("/bin/bash", "-c", enter+`exec unshare --cgroup /bin/bash -c "$leave"`)
	cmd.Env = append(os.Environ(), "leave="+leaveRoot, "script="+machine.MountCgroups+script, "dir="+dir, "inside="+self, insideVariable+"="+string(text))
	d, err := daemon.Start(cmd, filepath.Join(dir, "peers.log"))
	if err != nil {
		return err
	}
	ended := d.Wait(ctx)
	for _, name := range []string{"output", "report.xml", "containerd.log"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(to, name), content, 0o644)
		}
		if err != nil {
			return err
		}
	}
	var exit *exec.ExitError
	if errors.As(ended, &exit) && exit.Exited() && exit.ExitCode() != failed {
		return nil // the output has the tests that have failed
	}
	if ended != nil {
		return fmt.Errorf("%w\n%s", ended, d.LogTail(30))
	}
	return nil
}
