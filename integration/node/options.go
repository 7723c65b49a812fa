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
	// Stock is containerd of the same version without it.
	Stock = "containerd-stock"
)

// Mode is where imagepin runs.
type Mode string

// The modes.
const (
	// Plugin is within containerd.
	Plugin Mode = "plugin"
	// Serve is beside a stock containerd, as `imagepin serve`.
	Serve Mode = "serve"
)

// DefaultMode is the mode that the environment variable IMAGEPIN_MODE says, or else [Plugin].
func DefaultMode() Mode {
	if m := os.Getenv("IMAGEPIN_MODE"); m != "" {
		return Mode(m)
	}
	return Plugin
}

// Namespace is the containerd namespace of CRI.
const Namespace = "k8s.io"

// DefaultHandler is the runtime handler of pods that name none.
const DefaultHandler = "runc"

// maxRoot is the longest root: the socket of a shim below it must fit into a socket address (see containerd's socket_dir).
const maxRoot = 40

// Handler is a runtime handler: runc under another name, with the snapshotter and the platform given.
type Handler struct {
	Name        string
	Snapshotter string // empty: the default one
	Platform    string // empty: none configured, which means the node's
	// Extra is TOML for the handler's table, such as `disable_pause_image_pull = true`.
	Extra string
}

// Options say what containerd to run and how. The zero value is ours with one handler, runc on overlayfs.
type Options struct {
	// Mode is where imagepin runs; empty means [DefaultMode].
	Mode Mode
	// Binary is a name in BinDir or a path; empty means [Ours]. In mode [Serve], ours is stock with "imagepin serve"
	// beside it, and a variant of ours ("containerd-race") stock with that variant of imagepin ("imagepin-race").
	Binary string
	// BinDir is where the binaries are; empty means [BinDir]().
	BinDir string
	// Root is the directory for everything the node writes, at most 40 bytes long. Empty means a new temporary one, which
	// Close removes; a given one stays.
	Root string
	// Handlers beside runc. One with the name runc changes that.
	Handlers []Handler
	// Snapshotter is the default one; empty means overlayfs.
	Snapshotter string
	// DiscardUnpackedLayers as in CRI's image configuration.
	DiscardUnpackedLayers bool
	// SandboxImage is the reference of the pause image.
	SandboxImage string
	// HostsDirs are the roots of hosts.toml, below Root, in the order of config_path. Empty means one, "certs.d".
	HostsDirs []string
	// StatsCollectPeriod is in seconds; 0 leaves containerd's own default.
	StatsCollectPeriod int
	// DisabledPlugins by their full names.
	DisabledPlugins []string
	// Extra is TOML (configuration version 3) that is merged over what the options give; "{root}" in it is the node's root.
	Extra string
	// ServeExtra is TOML that is merged over the configuration of imagepin serve; "{root}" in it is the node's root.
	ServeExtra string
	// Env is added to containerd's environment, and to that of imagepin serve.
	Env []string
	// LogLevel of containerd; empty means debug.
	LogLevel string
	// NoPods says that no pod will run, so that runc may be missing.
	NoPods bool
	// StartTimeout is how long CRI may take until it answers; 0 means a minute.
	StartTimeout time.Duration
}

// BinDir is where the binaries under test are: the environment variable IMAGEPIN_BIN, or bin in this repository.
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

// Check says what of the parts that a node needs is missing here, and how to get it; nil means that all is there.
func Check(opts Options) error {
	opts = opts.withDefaults()
	var missing []string
	containerd, beside := opts.binaries()
	for _, name := range []string{containerd, beside, "containerd-shim-runc-v2", "runc", "ctr"} {
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

// binaries are those of containerd and of imagepin serve beside it, which is empty where there is none.
func (o Options) binaries() (containerd, beside string) {
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
