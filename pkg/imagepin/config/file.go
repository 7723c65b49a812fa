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
	"github.com/pelletier/go-toml/v2"
	"github.com/sirupsen/logrus"
)

// VerifierSection is the section of containerd's image verifiers.
const VerifierSection = "io.containerd.image-verifier.v1.bindir"

// fileVersion is the version of containerd's configuration format that the sections of a File have.
const fileVersion = 3

// DefaultServeAddress is the default of File.Address.
const DefaultServeAddress = "/run/imagepin/imagepin.sock"

// File is the configuration of imagepin as a separate process. The part of containerd's configuration that it does not
// have is read from the running containerd.
type File struct {
	// Version is the version of the sections; zero is 3.
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
	// Plugins has the sections: [Section], [ImagesSection], [TransferSection] and [VerifierSection].
	Plugins map[string]Table `toml:"plugins"`
}

// Metrics configures the address of metrics and health checks.
type Metrics struct {
	// Address is host:port; empty disables both.
	Address string `toml:"address"`
}

// Debug configures the address of profiles.
type Debug struct {
	// Address is a unix socket; empty disables profiles.
	Address string `toml:"address"`
}

// DefaultFile returns a file that has every key with its default, except [TransferSection], which is only needed if it
// is set in containerd.
func DefaultFile() (File, error) {
	f := defaultKeys()
	f.Plugins = make(map[string]Table)
	for name, section := range map[string]any{Section: DefaultConfig(), ImagesSection: defaultImages(), VerifierSection: defaultVerifier()} {
		t, err := tableOf(section)
		if err != nil {
			return File{}, err
		}
		f.Plugins[name] = *t
	}
	return f, nil
}

// defaultKeys returns the defaults of the keys outside of the sections.
func defaultKeys() File {
	return File{
		Version:           fileVersion,
		Address:           DefaultServeAddress,
		ContainerdAddress: defaults.DefaultAddress,
		State:             "/var/lib/imagepin",
		LogLevel:          "info",
	}
}

// defaultImages returns containerd's own defaults (internal/cri/config), without the sandbox image, which differs
// between versions.
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

// defaultConfigPath is containerd's default if no mirrors are configured.
const defaultConfigPath = "/etc/containerd/certs.d:/etc/docker/certs.d"

func defaultVerifier() bindir.Config {
	c := bindir.Config{BinDir: "/opt/containerd/image-verifier/bin", MaxVerifiers: 10}
	if err := c.PerVerifierTimeout.UnmarshalText([]byte("10s")); err != nil {
		panic(err) // the text is a constant
	}
	return c
}

// ServeConfig is a File that has been checked.
type ServeConfig struct {
	File
	Settings Settings
	Verifier bindir.Config
	images   Images
	transfer Transfer
}

// ParseFile parses a configuration file. It returns the errors of all keys, see [Errors]. They are ErrInvalidArgument, and
// name the section and the key.
func ParseFile(text []byte) (*ServeConfig, error) {
	f := defaultKeys()
	f.Plugins = make(map[string]Table)
	err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&f)
	errs := decodeErrors("", err, &f)
	var unknown *toml.StrictMissingError
	if err != nil && !errors.As(err, &unknown) {
		return nil, errors.Join(errs...) // the rest is not decoded
	}
	errs = append(errs, f.check()...)
	b := &ServeConfig{File: f, images: defaultImages(), transfer: DefaultTransfer(), Verifier: defaultVerifier()}
	if errs = append(errs, b.decodeSections()...); len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return b, nil
}

// UnknownPlatforms is [Images.UnknownPlatforms] of the file.
func (b *ServeConfig) UnknownPlatforms() []error { return b.images.UnknownPlatforms() }

// check validates the keys outside of the sections, and the names of the sections.
func (f File) check() (errs []error) {
	wrong := func(key string, err error) { errs = append(errs, topError(key, err)) }
	if f.Version != fileVersion {
		wrong("version", fmt.Errorf("%d is not supported, use %d", f.Version, fileVersion))
	}
	for _, path := range []struct{ key, value string }{
		{"address", f.Address}, {"containerd_address", f.ContainerdAddress}, {"state", f.State},
	} {
		if !strings.HasPrefix(path.value, "/") {
			wrong(path.key, fmt.Errorf("%q is not an absolute path", path.value))
		}
	}
	if a := f.Debug.Address; a != "" && !strings.HasPrefix(a, "/") {
		wrong("debug.address", fmt.Errorf("%q is not the path of a unix socket", a))
	}
	if _, err := logrus.ParseLevel(f.LogLevel); err != nil {
		wrong("log_level", err)
	}
	for _, name := range slices.Sorted(maps.Keys(f.Plugins)) {
		switch name {
		case Section, ImagesSection, TransferSection, VerifierSection:
		case runtimeSection:
			errs = append(errs, sectionError(name, "", errors.New("not allowed here: it is read from the running containerd")))
		default:
			errs = append(errs, sectionError(name, "", fmt.Errorf("unknown section; the sections are %q, %q, %q and %q", Section, ImagesSection, TransferSection, VerifierSection)))
		}
	}
	return errs
}

// decodeSections decodes the sections strictly.
func (b *ServeConfig) decodeSections() []error {
	var own error
	b.Settings, own = b.Plugins[Section].Check()
	into := struct {
		*Images
		// containerd has this key too. imagepin ignores it, because it pulls images itself.
		UseLocalImagePull bool `toml:"use_local_image_pull"`
	}{Images: &b.images}
	images := decodeStrictly(ImagesSection, b.Plugins[ImagesSection], &into)
	_, timeout := (CRI{Images: b.images}).ProgressTimeout()
	return Errors(errors.Join(
		own, images, timeout,
		decodeStrictly(TransferSection, b.Plugins[TransferSection], &b.transfer),
		decodeStrictly(VerifierSection, b.Plugins[VerifierSection], &b.Verifier),
	))
}

// ReportedConfig is the part of its configuration that a running containerd reports.
type ReportedConfig struct {
	Runtime Runtime
	// Snapshotter is the default snapshotter.
	Snapshotter string
	// DiscardUnpackedLayers and ConfigPath are reported by containerd 2.4 and later.
	DiscardUnpackedLayers *bool
	ConfigPath            *string
}

// Inherit returns the configuration of the CRI: the configuration that the running containerd reports, and the rest
// from the file. If the two contradict each other, it fails with ErrInvalidArgument, and names both values.
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

// checkSandboxImage fails if the sandbox image is not known but must be ready in more than one snapshotter. containerd
// makes it ready in one only.
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
		"is required: handlers use the snapshotters %s, and the running containerd does not report its sandbox image (see containerd config dump)",
		strings.Join(slices.Sorted(maps.Keys(used)), " and ")))
}
