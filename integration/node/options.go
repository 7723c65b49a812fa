package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Names of binaries in [BinDir].
const (
	// Ours is containerd with imagepin.
	Ours = "containerd"
	// Stock is containerd of the same version without imagepin.
	Stock = "containerd-stock"
)

// Mode is where imagepin runs.
type Mode string

// The modes.
const (
	// Plugin is imagepin as a plugin in containerd.
	Plugin Mode = "plugin"
	// Serve is `imagepin serve` in front of a stock containerd.
	Serve Mode = "serve"
)

// DefaultMode returns the mode in the environment variable IMAGEPIN_MODE, or [Plugin] if it is empty.
func DefaultMode() Mode {
	if m := os.Getenv("IMAGEPIN_MODE"); m != "" {
		return Mode(m)
	}
	return Plugin
}

// Namespace is the containerd namespace of the CRI.
const Namespace = "k8s.io"

// DefaultHandler is the runtime handler of pods that name none.
const DefaultHandler = "runc"

// maxRoot is the maximum length of a root: the path of a shim's socket below it must fit into a socket address (see
// containerd's socket_dir).
const maxRoot = 40

// Handler is a runtime handler for runc.
type Handler struct {
	Name        string
	Snapshotter string // empty means the default snapshotter
	Platform    string // empty means none in the configuration, so that it is the node's
	// Extra is TOML for the handler's table, such as `disable_pause_image_pull = true`.
	Extra string
}

// Options are the options of a node. The zero value means [Ours] with one handler, runc on overlayfs.
type Options struct {
	// Mode is where imagepin runs; empty means [DefaultMode].
	Mode Mode
	// Binary is a name in BinDir or a path. Empty means [Ours]. In mode [Serve], Ours means stock containerd with
	// imagepin serve, and a variant of Ours such as "containerd-race" means stock containerd with the same variant of
	// imagepin ("imagepin-race").
	Binary string
	// BinDir is the directory of the binaries. Empty means [BinDir]().
	BinDir string
	// Root is the directory of all files that the node writes, from [TempDir]. Its path has at most 40 bytes. Empty means a
	// new one, which Close removes.
	Root string
	// Handlers are the handlers in addition to runc. A handler named runc replaces it.
	Handlers []Handler
	// Snapshotter is the default snapshotter. Empty means overlayfs.
	Snapshotter string
	// DiscardUnpackedLayers is discard_unpacked_layers in the CRI's image configuration.
	DiscardUnpackedLayers bool
	// SandboxImage is the reference of the pause image.
	SandboxImage string
	// HostsDirs are the hosts directories below Root, in the order of config_path. Empty means "certs.d".
	HostsDirs []string
	// StatsCollectPeriod is in seconds. 0 means containerd's default.
	StatsCollectPeriod int
	// DisabledPlugins are the full names of disabled plugins.
	DisabledPlugins []string
	// Extra is TOML (configuration version 3) that overrides the configuration from the options. "{root}" in it means the
	// node's root.
	Extra string
	// ServeExtra is TOML that overrides the configuration of imagepin serve. "{root}" in it means the node's root.
	ServeExtra string
	// Env is added to the environment of containerd and imagepin serve.
	Env []string
	// LogLevel is the log level of containerd and imagepin serve. Empty means debug.
	LogLevel string
	// NoPods means that no pod runs. The handlers have no runtime, so that containerd starts faster and runc is not needed.
	NoPods bool
	// StartTimeout is the time in which the CRI must be ready. 0 means a minute.
	StartTimeout time.Duration
}

// BinDir returns the directory of the binaries under test: the environment variable IMAGEPIN_BIN, or bin in this
// repository.
func BinDir() string {
	if dir := os.Getenv("IMAGEPIN_BIN"); dir != "" {
		return dir
	}
	dir, err := os.Getwd()
	for err == nil && dir != filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "test-binaries.sh")); err == nil {
			return filepath.Join(dir, "bin")
		}
		dir = filepath.Dir(dir)
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		return filepath.Join(filepath.Dir(file), "..", "..", "bin")
	}
	return "bin"
}

// Check returns an error if something that a node needs is missing. The error says how to get it.
func Check(opts Options) error {
	opts = opts.withDefaults()
	var missing []string
	containerd, serve := opts.binaries()
	for _, name := range []string{containerd, serve, "containerd-shim-runc-v2", "runc", "ctr"} {
		if name == "" || name == "runc" && opts.NoPods {
			continue
		}
		if _, err := os.Stat(opts.binary(name)); err != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not in %s: %s; run `make build` and hack/test-binaries.sh", opts.BinDir, strings.Join(missing, ", "))
	}
	if os.Geteuid() != 0 {
		return errors.New("containerd with runc pods needs root")
	}
	return nil
}

func (o Options) withDefaults() Options {
	if o.Mode == "" {
		o.Mode = DefaultMode()
	}
	if o.Binary == "" {
		o.Binary = Ours
	}
	if o.BinDir == "" {
		o.BinDir = BinDir()
	}
	if o.Snapshotter == "" {
		o.Snapshotter = "overlayfs"
	}
	if len(o.HostsDirs) == 0 {
		o.HostsDirs = []string{"certs.d"}
	}
	if o.LogLevel == "" {
		o.LogLevel = "debug"
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = time.Minute
	}
	return o
}

// binaries returns the binary of containerd and that of imagepin serve, which is empty if the node has none.
func (o Options) binaries() (containerd, serve string) {
	variant, ours := strings.CutPrefix(o.Binary, Ours)
	if o.Mode != Serve || o.Binary == Stock || !ours {
		return o.Binary, ""
	}
	return Stock, "imagepin" + variant
}

func (o Options) binary(name string) string {
	if strings.ContainsRune(name, filepath.Separator) {
		return name
	}
	return filepath.Join(o.BinDir, name)
}
