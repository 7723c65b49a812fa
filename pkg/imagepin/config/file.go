package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
	"github.com/sirupsen/logrus"
)

// VerifierSection is that of containerd's image verifiers.
const VerifierSection = "io.containerd.image-verifier.v1.bindir"

// FileVersion is the version of containerd's configuration whose sections a File
// has.
const FileVersion = 3

// File is the configuration of imagepin beside a containerd. What it does not
// have of containerd's configuration is read from the running containerd.
type File struct {
	// Version is that of the sections; zero is [FileVersion].
	Version int `toml:"version"`
	// Address is the unix socket that the CRI is served on.
	Address string `toml:"address"`
	// ContainerdAddress is containerd's socket.
	ContainerdAddress string `toml:"containerd_address"`
	// State is the directory of the node's key.
	State string `toml:"state"`
	// LogLevel is trace, debug, info, warn, error, fatal or panic.
	LogLevel string  `toml:"log_level"`
	Metrics  Metrics `toml:"metrics"`
	Debug    Debug   `toml:"debug"`
	// Plugins are the sections: [Section], [ImagesSection], [TransferSection]
	// and [VerifierSection].
	Plugins map[string]Table `toml:"plugins"`
}

// Metrics is where metrics and health are served.
type Metrics struct {
	// Address is host:port; empty serves none.
	Address string `toml:"address"`
}

// Debug is where profiles are served.
type Debug struct {
	// Address is a unix socket; empty serves none.
	Address string `toml:"address"`
}

// DefaultFile has every key with its default, but for [TransferSection], which is
// for those who have set it in containerd.
func DefaultFile() (File, error) {
	f := defaultKeys()
	f.Plugins = make(map[string]Table)
	for name, section := range map[string]any{Section: DefaultConfig(), ImagesSection: defaultImages(), VerifierSection: defaultVerifier()} {
		b, err := toml.Marshal(section)
		if err != nil {
			return File{}, err
		}
		t := Table{}
		if err := toml.Unmarshal(b, &t); err != nil {
			return File{}, err
		}
		f.Plugins[name] = t
	}
	return f, nil
}

// defaultKeys are the defaults of what is in no section.
func defaultKeys() File {
	return File{
		Version:           FileVersion,
		Address:           "/run/imagepin/imagepin.sock",
		ContainerdAddress: defaults.DefaultAddress,
		State:             "/var/lib/imagepin",
		LogLevel:          "info",
	}
}

// defaultImages are containerd's own defaults (internal/cri/config), without the
// sandbox image, which differs from version to version.
func defaultImages() Images {
	i := Images{
		Snapshotter:                defaults.DefaultSnapshotter,
		DisableSnapshotAnnotations: true,
		MaxConcurrentDownloads:     defaultDownloads,
		ImagePullProgressTimeout:   "5m0s",
		StatsCollectPeriod:         10,
		PinnedImages:               map[string]string{},
		RuntimePlatforms:           map[string]Platform{},
	}
	i.ImageDecryption.KeyModel = "node"
	return i
}

// defaultConfigPath is containerd's, where there are no mirrors.
const defaultConfigPath = "/etc/containerd/certs.d:/etc/docker/certs.d"

func defaultVerifier() bindir.Config {
	c := bindir.Config{BinDir: "/opt/containerd/image-verifier/bin", MaxVerifiers: 10}
	if err := c.PerVerifierTimeout.UnmarshalText([]byte("10s")); err != nil {
		panic(err) // of a constant
	}
	return c
}

// Beside is a File that has been checked.
type ServeConfig struct {
	File
	Settings Settings
	Verifier bindir.Config
	images   Images
	transfer Transfer
}

// ParseFile reads a configuration file. Its error is ErrInvalidArgument and names
// section and key.
func ParseFile(text []byte) (*ServeConfig, error) {
	f := defaultKeys()
	f.Plugins = make(map[string]Table)
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&f); err != nil {
		key, err := explain(err)
		return nil, topError(key, err)
	}
	if f.Version != FileVersion {
		return nil, topError("version", fmt.Errorf("it is %d, and the sections are those of version %d", f.Version, FileVersion))
	}
	for key, value := range map[string]string{"address": f.Address, "containerd_address": f.ContainerdAddress, "state": f.State} {
		if !strings.HasPrefix(value, "/") {
			return nil, topError(key, fmt.Errorf("%q is not an absolute path", value))
		}
	}
	if a := f.Debug.Address; a != "" && !strings.HasPrefix(a, "/") {
		return nil, topError("debug.address", fmt.Errorf("%q is not the path of a unix socket", a))
	}
	if _, err := logrus.ParseLevel(f.LogLevel); err != nil {
		return nil, topError("log_level", err)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Plugins)) {
		switch name {
		case Section, ImagesSection, TransferSection, VerifierSection:
		case RuntimeSection:
			return nil, sectionError(name, "", errors.New("it is read from the running containerd"))
		default:
			return nil, sectionError(name, "", fmt.Errorf("there is no such section; there are %q, %q, %q and %q", Section, ImagesSection, TransferSection, VerifierSection))
		}
	}
	b := &ServeConfig{File: f, images: defaultImages(), transfer: DefaultTransfer(), Verifier: defaultVerifier()}
	var err error
	if b.Settings, err = f.Plugins[Section].Check(); err != nil {
		return nil, err
	}
	into := struct {
		*Images
		// containerd has this key too. It is imagepin that pulls.
		UseLocalImagePull bool `toml:"use_local_image_pull"`
	}{Images: &b.images}
	if err := decodeStrictly(ImagesSection, f.Plugins[ImagesSection], &into); err != nil {
		return nil, err
	}
	if err := decodeStrictly(TransferSection, f.Plugins[TransferSection], &b.transfer); err != nil {
		return nil, err
	}
	if _, err := (CRI{Images: b.images}).ProgressTimeout(); err != nil {
		return nil, err
	}
	return b, decodeStrictly(VerifierSection, f.Plugins[VerifierSection], &b.Verifier)
}

// topError says which key is wrong that is in no section.
func topError(key string, err error) error {
	if key == "" {
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%s: %w: %w", key, err, errdefs.ErrInvalidArgument)
}

// Running is what a running containerd tells of its configuration.
type ReportedConfig struct {
	Runtime Runtime
	// Snapshotter is the default one.
	Snapshotter string
	// DiscardUnpackedLayers and ConfigPath are told by containerd 2.4 and later.
	DiscardUnpackedLayers *bool
	ConfigPath            *string
}

// Inherit gives the whole configuration of the CRI: what the running containerd
// tells, and for the rest what stands in the file. Where the two contradict each
// other, the error names both.
func (b *ServeConfig) Inherit(r ReportedConfig) (CRI, error) {
	c := CRI{Images: b.images, Runtime: r.Runtime, Transfer: &b.transfer}
	set := b.Plugins[ImagesSection]
	differs := func(key string, here, there any) error {
		return sectionError(ImagesSection, key, fmt.Errorf("it is %#v here, but %#v in the running containerd", here, there))
	}
	if r.Snapshotter != "" {
		if _, ok := set["snapshotter"]; ok && c.Images.Snapshotter != r.Snapshotter {
			return CRI{}, differs("snapshotter", c.Images.Snapshotter, r.Snapshotter)
		}
		c.Images.Snapshotter = r.Snapshotter
	}
	if r.DiscardUnpackedLayers != nil {
		if _, ok := set["discard_unpacked_layers"]; ok && c.Images.DiscardUnpackedLayers != *r.DiscardUnpackedLayers {
			return CRI{}, differs("discard_unpacked_layers", c.Images.DiscardUnpackedLayers, *r.DiscardUnpackedLayers)
		}
		c.Images.DiscardUnpackedLayers = *r.DiscardUnpackedLayers
	}
	hasPath := c.Images.Registry.ConfigPath != ""
	switch {
	case r.ConfigPath != nil && hasPath && c.Images.Registry.ConfigPath != *r.ConfigPath:
		return CRI{}, differs("registry.config_path", c.Images.Registry.ConfigPath, *r.ConfigPath)
	case r.ConfigPath != nil:
		c.Images.Registry.ConfigPath = *r.ConfigPath
	case !hasPath && len(c.Images.Registry.Mirrors) == 0:
		c.Images.Registry.ConfigPath = defaultConfigPath
	}
	return c, b.checkSandboxImage(c)
}

// checkSandboxImage wants to know the sandbox image where that has to be made
// ready in more than one snapshotter: containerd does so in one only.
func (b *ServeConfig) checkSandboxImage(c CRI) error {
	if c.SandboxImage() != "" {
		return nil
	}
	used := map[string]bool{}
	for _, h := range c.Runtime.Containerd.Runtimes {
		if h.Snapshotter == "" {
			h.Snapshotter = c.Images.Snapshotter
		}
		if !h.DisablePauseImagePull {
			used[h.Snapshotter] = true
		}
	}
	if len(used) < 2 {
		return nil
	}
	return sectionError(ImagesSection, "pinned_images.sandbox", fmt.Errorf(
		"is missing: handlers are on the snapshotters %s, and the running containerd does not tell which image it makes sandboxes of (containerd config dump does)",
		strings.Join(slices.Sorted(maps.Keys(used)), " and ")))
}
