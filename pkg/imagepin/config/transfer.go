package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TransferSection is that of containerd's transfer service, by which its own CRI
// pulls.
const TransferSection = "io.containerd.transfer.v1.local"

// Transfer is what is read of [plugins."io.containerd.transfer.v1.local"]. The
// keys are those of containerd's transferConfig (plugins/transfer/plugin.go),
// whose type is not public.
type Transfer struct {
	MaxConcurrentDownloads      int      `toml:"max_concurrent_downloads"`
	ConcurrentLayerFetchBuffer  int      `toml:"concurrent_layer_fetch_buffer"`
	MaxConcurrentUploadedLayers int      `toml:"max_concurrent_uploaded_layers"`
	CheckPlatformSupported      bool     `toml:"check_platform_supported"`
	Unpack                      []Unpack `toml:"unpack_config,omitempty"`
	ConfigPath                  string   `toml:"config_path"`
	MaxConcurrentUnpacks        int      `toml:"max_concurrent_unpacks"`
}

// Unpack is one of unpack_config: which differ unpacks the images of a platform
// in a snapshotter.
type Unpack struct {
	Platform    string   `toml:"platform"`
	Snapshotter string   `toml:"snapshotter"`
	Differ      string   `toml:"differ"`
	ConfigType  string   `toml:"config_type"`
	LayerTypes  []string `toml:"layer_types"`
	Optional    bool     `toml:"optional"`
}

const (
	// defaultDownloads is containerd's default of max_concurrent_downloads, in
	// the sections of its CRI and of its transfer service.
	defaultDownloads = 3
	// defaultUploads and defaultUnpacks are those of the transfer service.
	defaultUploads = 3
	defaultUnpacks = 1
	// defaultOwnUnpacks is the default in our section.
	defaultOwnUnpacks = 4
)

// DefaultTransfer is what holds where the section says nothing, without its
// unpack_config.
func DefaultTransfer() Transfer {
	return Transfer{
		MaxConcurrentDownloads: defaultDownloads, MaxConcurrentUploadedLayers: defaultUploads, MaxConcurrentUnpacks: defaultUnpacks,
	}
}

// transfer is what holds of the section.
func (c CRI) transfer() Transfer {
	if c.Transfer == nil {
		return DefaultTransfer()
	}
	return *c.Transfer
}

// MaxConcurrentDownloads is how many layers are fetched at once; zero is any
// number. A key at its default gives way to the same key of the transfer
// service.
func (c CRI) MaxConcurrentDownloads() int {
	return changed(c.Images.MaxConcurrentDownloads, defaultDownloads, c.transfer().MaxConcurrentDownloads)
}

// ConcurrentLayerFetchBuffer is the size, in bytes, of the pieces that a layer is
// fetched in; zero fetches it whole.
func (c CRI) ConcurrentLayerFetchBuffer() int {
	return cmp.Or(c.Images.ConcurrentLayerFetchBuffer, c.transfer().ConcurrentLayerFetchBuffer)
}

// MaxConcurrentUnpacks is how many layers of one image are unpacked at once: as
// our own section says, or the transfer service's where ours is at its default
// and that one is not.
func (c CRI) MaxConcurrentUnpacks(own Settings) int {
	return changed(own.MaxConcurrentUnpacks, defaultOwnUnpacks, changed(c.transfer().MaxConcurrentUnpacks, defaultUnpacks, defaultOwnUnpacks))
}

// changed is a value, or another where it is the default.
func changed(value, byDefault, other int) int {
	if value != byDefault {
		return value
	}
	return other
}

// unheededTransfer says by name what of the section is not done.
func (c CRI) unsupportedTransfer(warn func(section, key, why string)) {
	if p := c.transfer().ConfigPath; p != "" && p != c.Images.Registry.ConfigPath {
		warn(TransferSection, "config_path", fmt.Sprintf("registries are reached as [plugins.%q] registry says", ImagesSection))
	}
	if c.transfer().MaxConcurrentUploadedLayers != defaultUploads {
		warn(TransferSection, "max_concurrent_uploaded_layers", "imagepin pushes nothing; pushes of containerd's own clients follow it")
	}
}

// Differs gives the differ that each snapshotter of the handlers is to be
// unpacked by, where the transfer service has an unpack_config for one of its
// handlers' platforms: the first that has, as there. ignored says by name what is
// not done.
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
			ignore("", "config_type and layer_types are of artifacts, and handlers run images")
			continue
		}
		switch first, taken := differs[u.Snapshotter]; {
		case !taken:
			differs[u.Snapshotter] = u.Differ
		case first != u.Differ:
			ignore(".differ", fmt.Sprintf("%q unpacks in %q already, for all platforms", first, u.Snapshotter))
		}
	}
	return differs, ignored
}

// matcher matches platforms as containerd's transfer service does.
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
