package power

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/power/disk"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// options are the options of a node whose handlers have overlayfs and another snapshotter. What it keeps over a boot is below
// {root}/root, which is the disk.
func options(mode node.Mode, second string, sync bool) node.Options {
	return testkit.WithSecond(second, node.Options{
		Mode: mode, NoPods: true,
		Extra:      fmt.Sprintf("[plugins.%q]\nsync = %t\n", testkit.OurSection, sync),
		ServeExtra: "state = \"{root}/root/imagepin\"\n",
	})
}

// machine is a node that boots from a disk, and loses power.
type machine struct {
	*testkit.Rig
	mounted *disk.Mounted
}

// newMachine returns a machine without power. If syncfs is not set, that system call fails in its processes.
func newMachine(t *testing.T, reg *registry.Registry, opts node.Options, syncfs bool) *machine {
	t.Helper()
	if err := node.Sweep(); err != nil {
		t.Fatal(err)
	}
	root, err := node.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	opts.Root, opts.BinDir = root, filepath.Join(root, "bin")
	var with []string
	if !syncfs {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		with = []string{self, withoutSyncfs}
	}
	if err := wrap(node.BinDir(), opts.BinDir, bootID(root), with); err != nil {
		t.Fatal(err)
	}
	m := &machine{Rig: &testkit.Rig{Node: testkit.NewNode(t, opts), T: t, Ctx: testkit.Context(t), Reg: reg}}
	t.Cleanup(func() { // before the node is closed
		if m.mounted != nil {
			m.losePower()
		}
	})
	return m
}

func bootID(root string) string { return filepath.Join(root, "boot-id") }

// wrap makes a directory of binaries that read another boot ID than that of this machine, which goes on. A command runs them.
func wrap(from, to, bootID string, with []string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"containerd-shim-runc-v2", "ctr"} {
		if err := os.Symlink(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{node.Ours, node.Stock, "imagepin"} {
		script := fmt.Sprintf(`#!/bin/sh
exec %s unshare --mount --propagation private sh -c 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"' %q %q "$@"
`, strings.Join(with, " "), bootID, filepath.Join(from, name))
		if err := os.WriteFile(filepath.Join(to, name), []byte(script), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// boot starts the machine with a disk.
func (m *machine) boot(d *disk.Disk) {
	m.T.Helper()
	m.start(d.Mount)
}

// bootCopy starts the machine with a copy of a disk.
func (m *machine) bootCopy(d *disk.Disk) {
	m.T.Helper()
	m.start(d.MountCopy)
}

func (m *machine) start(mount func(dir string) (*disk.Mounted, error)) {
	m.T.Helper()
	id := bootID(m.Root())
	if err := os.WriteFile(id+".new", []byte(uuid.NewString()+"\n"), 0o644); err != nil {
		m.T.Fatal(err)
	}
	if err := os.Rename(id+".new", id); err != nil { // processes of the boot before have mounted the old file
		m.T.Fatal(err)
	}
	var err error
	if m.mounted, err = mount(m.Path("root")); err != nil {
		m.T.Fatal(err)
	}
	if err := m.Start(m.Ctx); err != nil {
		m.T.Fatal(err)
	}
}

// losePower ends the machine. What is on its disk is a matter of the copies that were made before.
func (m *machine) losePower() {
	m.T.Helper()
	mounted := m.mounted
	m.mounted = nil
	if err := m.PowerLoss(); err != nil {
		m.T.Fatal(err)
	}
	if err := mounted.Unmount(); err != nil {
		m.T.Fatal(err)
	}
}

// shutDown stops the machine. All that it has written is then on the disk.
func (m *machine) shutDown() {
	m.T.Helper()
	mounted := m.mounted
	m.mounted = nil
	if err := m.Stop(); err != nil {
		m.T.Fatal(err)
	}
	if err := mounted.Unmount(); err != nil {
		m.T.Fatal(err)
	}
}

// onDisk mounts a disk while the machine has no power, and calls do for all files in snapshots that images have with content.
func (m *machine) onDisk(mount func(dir string) (*disk.Mounted, error), do func(path string) error) {
	m.T.Helper()
	mounted, err := mount(m.Path("root"))
	if err != nil {
		m.T.Fatal(err)
	}
	err = filepath.WalkDir(m.Path("root"), func(path string, e fs.DirEntry, err error) error {
		ofImage := strings.Contains(path, "io.containerd.snapshotter.v1.") && e.Type().IsRegular()
		if err == nil && ofImage && (strings.HasPrefix(e.Name(), "file") || e.Name() == "layer.erofs") {
			err = do(path)
		}
		return err
	})
	if err := errors.Join(err, mounted.Unmount()); err != nil {
		m.T.Fatal(err)
	}
}

// command runs the imagepin command.
func (m *machine) command(args ...string) error {
	cmd := exec.CommandContext(m.Ctx, filepath.Join(node.BinDir(), "imagepin"), append([]string{"--address", m.Address()}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("imagepin %q: %w: %s", args, err, out)
	}
	return nil
}
