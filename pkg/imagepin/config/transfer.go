package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TransferSection is the section of containerd's transfer service, which its own CRI uses to pull.
const TransferSection = "io.containerd.transfer.v1.local"

// Transfer has the keys of [plugins."io.containerd.transfer.v1.local"]. They are the keys of containerd's
// transferConfig (plugins/transfer/plugin.go), whose type is not public.
type Transfer struct {
	MaxConcurrentDownloads      int      `toml:"max_concurrent_downloads"`
	ConcurrentLayerFetchBuffer  int      `toml:"concurrent_layer_fetch_buffer"`
	MaxConcurrentUploadedLayers int      `toml:"max_concurrent_uploaded_layers"`
	CheckPlatformSupported      bool     `toml:"check_platform_supported"`
	Unpack                      []Unpack `toml:"unpack_config,omitempty"`
	ConfigPath                  string   `toml:"config_path"`
	MaxConcurrentUnpacks        int      `toml:"max_concurrent_unpacks"`
}

// Unpack is an entry of unpack_config: the differ that unpacks the images of a platform in a snapshotter.
type Unpack struct {
	Platform    string   `toml:"platform"`
	Snapshotter string   `toml:"snapshotter"`
	Differ      string   `toml:"differ"`
	ConfigType  string   `toml:"config_type"`
	LayerTypes  []string `toml:"layer_types"`
	Optional    bool     `toml:"optional"`
}

const (
	// defaultDownloads is containerd's default of max_concurrent_downloads in the sections of its CRI and of its
	// transfer service.
	defaultDownloads = 3
	// defaultUploads and defaultUnpacks are defaults of the transfer service.
	defaultUploads = 3
	defaultUnpacks = 1
	// defaultOwnUnpacks is the default in imagepin's section.
	defaultOwnUnpacks = 4
)

// DefaultTransfer returns the defaults of the section, without unpack_config.
func DefaultTransfer() Transfer {
	return Transfer{
		MaxConcurrentDownloads: defaultDownloads, MaxConcurrentUploadedLayers: defaultUploads, MaxConcurrentUnpacks: defaultUnpacks,
	}
}

// transfer returns the section, or its defaults if it is not known.
func (c CRI) transfer() Transfer {
	if c.Transfer == nil {
		return DefaultTransfer()
	}
	return *c.Transfer
}

// MaxConcurrentDownloads returns how many layers are fetched at once; zero is without limit. If the key of the CRI has
// its default, the same key of the transfer service takes precedence.
func (c CRI) MaxConcurrentDownloads() int {
	return overrideDefault(c.Images.MaxConcurrentDownloads, defaultDownloads, c.transfer().MaxConcurrentDownloads)
}

// ConcurrentLayerFetchBuffer returns the size, in bytes, of the parts that a layer is fetched in; zero fetches it as a
// whole.
func (c CRI) ConcurrentLayerFetchBuffer() int {
	return cmp.Or(c.Images.ConcurrentLayerFetchBuffer, c.transfer().ConcurrentLayerFetchBuffer)
}

// MaxConcurrentUnpacks returns how many layers of one image are unpacked at once. It is the value of imagepin's
// section, or of the transfer service if only imagepin's key has its default.
func (c CRI) MaxConcurrentUnpacks(own Settings) int {
	return overrideDefault(own.MaxConcurrentUnpacks, defaultOwnUnpacks, overrideDefault(c.transfer().MaxConcurrentUnpacks, defaultUnpacks, defaultOwnUnpacks))
}

// overrideDefault returns value, or other if value is the default.
func overrideDefault(value, byDefault, other int) int {
	if value != byDefault {
		return value
	}
	return other
}

// unsupportedTransfer warns about the keys of the section that imagepin ignores.
func (c CRI) unsupportedTransfer(warn func(section, key, why string)) {
	if p := c.transfer().ConfigPath; p != "" && p != c.Images.Registry.ConfigPath {
		warn(TransferSection, "config_path", fmt.Sprintf("imagepin uses [plugins.%q] registry", ImagesSection))
	}
	if c.transfer().MaxConcurrentUploadedLayers != defaultUploads {
		warn(TransferSection, "max_concurrent_uploaded_layers", "imagepin does not push; it still applies to pushes of containerd's own clients")
	}
}

// Differs returns the differ that unpacks in each snapshotter of the handlers, if unpack_config has an entry for a
// platform of the snapshotter's handlers. The first such entry wins, as in containerd. ignored has a warning for each
// entry that imagepin ignores.
func (c CRI) Differs(handlers *runtimeplatform.Set) (differs map[string]string, ignored []string) {
	differs = make(map[string]string)
	for i, u := range c.transfer().Unpack {
		ignore := func(key, why string) {
			ignored = append(ignored, fmt.Sprintf("[plugins.%q] unpack_config[%d]%s is ignored: %s", TransferSection, i+1, key, why))
		}
		matches, err := c.transfer().matcher(u.Platform)
		if err != nil {
			ignore(".platform", err.Error())
			continue
		}
		of := slices.DeleteFunc(handlers.Targets(), func(t runtimeplatform.Target) bool {
			rt, ok := handlers.ForTarget(t)
			return t.Snapshotter != u.Snapshotter || !ok || !matches.Match(rt.Spec)
		})
		if len(of) == 0 {
			if !u.Optional && (u.Snapshotter != defaults.DefaultSnapshotter || u.Differ != defaults.DefaultDiffer) {
				ignore("", fmt.Sprintf("no runtime handler unpacks %s in %q", u.Platform, u.Snapshotter))
			}
			continue
		}
		if u.ConfigType != "" || len(u.LayerTypes) > 0 {
			ignore("", "config_type and layer_types apply to artifacts, and handlers run images")
			continue
		}
		switch first, taken := differs[u.Snapshotter]; {
		case !taken:
			differs[u.Snapshotter] = u.Differ
		case first != u.Differ:
			ignore(".differ", fmt.Sprintf("%q already unpacks in %q for all platforms", first, u.Snapshotter))
		}
	}
	return differs, ignored
}

// matcher matches platforms in the same way as containerd's transfer service.
func (t Transfer) matcher(platform string) (platforms.MatchComparer, error) {
	p, err := platforms.Parse(platform)
	if err != nil {
		return nil, err
	}
	if t.CheckPlatformSupported {
		return platforms.Only(p), nil
	}
	return platforms.OnlyOS(p), nil
}
