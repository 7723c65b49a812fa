package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// canRunPods returns why pods cannot run on this machine, or nil. It runs a container with runc and without containerd,
// so that a failure of containerd does not count as one of the machine.
func canRunPods(ctx context.Context, n *node.Node) error {
	if n.Options().NoPods {
		return errors.New("no runc next to containerd; hack/test-binaries.sh builds it")
	}
	bundle := n.Path("probe")
	defer os.RemoveAll(bundle)
	if err := writeBundle(ctx, bundle, filepath.Base(n.Root())); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(n.Options().BinDir, "runc"), "--root", n.Path("probe", "state"), "run", "--bundle", bundle, "probe")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("runc: %s", cmp.Or(lastMessage(string(out)), err.Error()))
	}
	return nil
}

// lastMessage returns the text of the last line of runc's log.
func lastMessage(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	_, message, _ := strings.Cut(lines[len(lines)-1], "msg=")
	return strings.Trim(message, `"`)
}

// writeBundle writes an OCI bundle of a program that exits at once. Its cgroup is below that of the node, which removes
// it.
func writeBundle(ctx context.Context, dir, cgroup string) error {
	program, err := (&images.Programs{}).App(ctx)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "rootfs", "proc"), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "rootfs", "app"), program, 0o755); err != nil {
		return err
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"ociVersion": "1.0.2",
		"process":    object{"args": []string{"/app", "exit", "0"}, "cwd": "/", "user": object{"uid": 0, "gid": 0}},
		"root":       object{"path": "rootfs"},
		"mounts":     []object{{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": object{
			"cgroupsPath": "/" + cgroup + "/probe",
			"namespaces":  []object{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}},
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644)
}
