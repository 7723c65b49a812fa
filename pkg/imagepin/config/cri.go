package config

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// ImagesSection is the section of containerd's CRI image plugin.
	ImagesSection = "io.containerd.cri.v1.images"
	// runtimeSection is the section of containerd's CRI runtime plugin.
	runtimeSection = "io.containerd.cri.v1.runtime"
	// CRISection is the section of both in version 2 of the configuration, and the URI of the plugin that serves the CRI.
	CRISection = "io.containerd.grpc.v1.cri"
)

// Images has the keys of [plugins."io.containerd.cri.v1.images"] that imagepin reads. They are keys of containerd's
// ImageConfig (internal/cri/config/config.go), whose type is not public.
type Images struct {
	Snapshotter                string              `toml:"snapshotter"`
	DisableSnapshotAnnotations bool                `toml:"disable_snapshot_annotations"`
	DiscardUnpackedLayers      bool                `toml:"discard_unpacked_layers"`
	PinnedImages               map[string]string   `toml:"pinned_images"`
	RuntimePlatforms           map[string]Platform `toml:"runtime_platforms"`
	Registry                   Registry            `toml:"registry"`
	ImageDecryption            struct {
		KeyModel string `toml:"key_model"`
	} `toml:"image_decryption"`
	MaxConcurrentDownloads     int    `toml:"max_concurrent_downloads"`
	ConcurrentLayerFetchBuffer int    `toml:"concurrent_layer_fetch_buffer"`
	ImagePullProgressTimeout   string `toml:"image_pull_progress_timeout"`
	ImagePullWithSyncFS        bool   `toml:"image_pull_with_sync_fs"`
	StatsCollectPeriod         int    `toml:"stats_collect_period"`
}

// Platform is an entry of runtime_platforms.
type Platform struct {
	Platform    string `toml:"platform"`
	Snapshotter string `toml:"snapshotter"`
}

// Registry configures the access to registries.
type Registry struct {
	ConfigPath string `toml:"config_path"`
	Mirrors    map[string]struct {
		Endpoints []string `toml:"endpoint"`
	} `toml:"mirrors"`
	Configs map[string]struct {
		Auth *Auth `toml:"auth"`
	} `toml:"configs"`
	Headers map[string][]string `toml:"headers"`
}

// Auth is the node's own credential for a registry host.
type Auth struct {
	Username      string `toml:"username"`
	Password      string `toml:"password"`
	Auth          string `toml:"auth"`
	IdentityToken string `toml:"identitytoken"`
}

// Runtime has the keys of [plugins."io.containerd.cri.v1.runtime"] that imagepin reads. The CRI reports them as JSON.
type Runtime struct {
	Containerd struct {
		DefaultRuntimeName string             `toml:"default_runtime_name" json:"defaultRuntimeName"`
		Runtimes           map[string]Handler `toml:"runtimes" json:"runtimes"`
	} `toml:"containerd" json:"containerd"`
}

// Handler has the keys of an entry of containerd.runtimes that imagepin reads.
type Handler struct {
	Type                  string         `toml:"runtime_type" json:"runtimeType"`
	Snapshotter           string         `toml:"snapshotter" json:"snapshotter"`
	DisablePauseImagePull bool           `toml:"disable_pause_image_pull" json:"disablePauseImagePull"`
	Options               map[string]any `toml:"options" json:"options"`
}

// CRI is the configuration of containerd's CRI plugins, of its transfer service and of its metadata database.
type CRI struct {
	Images  Images
	Runtime Runtime
	// Transfer is nil if the section is not known.
	Transfer *Transfer
	// Metadata is zero if the section is not known.
	Metadata Metadata
}

// Handlers returns the runtime handlers. loaded reports whether a snapshotter is loaded. An error is ErrInvalidArgument
// and names the invalid key.
func (c CRI) Handlers(own Settings, loaded func(snapshotter string) bool) (*runtimeplatform.Set, error) {
	if !loaded(c.Images.Snapshotter) {
		return nil, sectionError(ImagesSection, "snapshotter", fmt.Errorf("snapshotter %q is not loaded", c.Images.Snapshotter))
	}
	runtimes := c.Runtime.Containerd.Runtimes
	for _, name := range slices.Sorted(maps.Keys(c.Images.RuntimePlatforms)) {
		if _, ok := runtimes[name]; !ok {
			return nil, sectionError(ImagesSection, "runtime_platforms."+name, errors.New("unknown runtime handler"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own.Isolation)) {
		if _, ok := runtimes[name]; !ok {
			return nil, keyError("handlers."+name, errors.New("unknown runtime handler"))
		}
	}
	var handlers []runtimeplatform.Handler
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		h := runtimeplatform.Handler{
			Name:        name,
			Platform:    c.Images.RuntimePlatforms[name].Platform,
			Snapshotter: runtimes[name].Snapshotter,
			Isolation:   own.Isolation[name],
		}
		if h.Snapshotter == "" {
			h.Snapshotter = c.Images.Snapshotter
		}
		if !loaded(h.Snapshotter) {
			return nil, sectionError(runtimeSection, "containerd.runtimes."+name+".snapshotter",
				fmt.Errorf("snapshotter %q is not loaded", h.Snapshotter))
		}
		handlers = append(handlers, h)
	}
	set, err := runtimeplatform.New(c.Runtime.Containerd.DefaultRuntimeName, handlers, runtimeplatform.Host{})
	var invalid *runtimeplatform.ConfigError
	if errors.As(err, &invalid) {
		return nil, c.handlerError(invalid)
	}
	return set, err
}

// handlerError adds the section and the key to the error for an invalid handler.
func (c CRI) handlerError(invalid *runtimeplatform.ConfigError) error {
	switch invalid.Key {
	case "platform":
		return sectionError(ImagesSection, "runtime_platforms."+invalid.Handler+".platform", invalid)
	case "isolation":
		return keyError("handlers."+invalid.Handler+".isolation", invalid)
	case "default_runtime_name":
		return sectionError(runtimeSection, "containerd.default_runtime_name", invalid)
	}
	return sectionError(runtimeSection, "containerd.runtimes."+invalid.Handler, invalid)
}

// Unsupported returns a warning for each key of containerd's configuration that imagepin ignores, or whose platform it does
// not know. It names the key and the reason.
func (c CRI) Unsupported() []string {
	var all []string
	warn := func(section, key, why string) {
		all = append(all, fmt.Sprintf("[plugins.%q] %s is ignored: %s", section, key, why))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Images.RuntimePlatforms)) {
		want := c.Images.RuntimePlatforms[name].Snapshotter
		have := c.Runtime.Containerd.Runtimes[name].Snapshotter
		if have == "" {
			have = c.Images.Snapshotter
		}
		if want != "" && want != have {
			warn(ImagesSection, "runtime_platforms."+name+".snapshotter",
				fmt.Sprintf("handler %s uses snapshotter %q, as configured in containerd.runtimes.%s.snapshotter", name, have, name))
		}
	}
	if m := c.Images.ImageDecryption.KeyModel; m != "" && m != "node" {
		warn(ImagesSection, "image_decryption.key_model", fmt.Sprintf("unknown key model %q", m))
	}
	c.unsupportedTransfer(warn)
	for _, err := range c.Images.UnknownPlatforms() {
		all = append(all, err.Error())
	}
	return all
}

// Registry returns the configuration for the access to registries.
func (c CRI) Registry() resolve.RegistryConfig {
	r := c.Images.Registry
	config := resolve.RegistryConfig{
		ConfigPath: filepath.SplitList(r.ConfigPath),
		Headers:    http.Header(r.Headers),
		Mirrors:    make(map[string][]string, len(r.Mirrors)),
		Auths:      make(map[string]resolve.Credential, len(r.Configs)),
	}
	for host, m := range r.Mirrors {
		config.Mirrors[host] = m.Endpoints
	}
	for host, h := range r.Configs {
		if h.Auth != nil {
			config.Auths[host] = resolve.Credential{
				Username: h.Auth.Username, Password: h.Auth.Password,
				Auth: h.Auth.Auth, IdentityToken: h.Auth.IdentityToken,
			}
		}
	}
	return config
}

// SandboxImage returns the image that sandboxes are created from; "" if not configured.
func (c CRI) SandboxImage() string { return c.Images.PinnedImages["sandbox"] }

// PinnedImages returns the references that kubelet must not remove, normalized. A value that is not a reference is
// unchanged, as in containerd.
func (c CRI) PinnedImages() []string {
	var refs []string
	for _, name := range slices.Sorted(maps.Keys(c.Images.PinnedImages)) {
		image := c.Images.PinnedImages[name]
		if ref, err := reference.ParseDockerRef(image); err == nil {
			image = ref.String()
		}
		refs = append(refs, image)
	}
	return refs
}

// ProgressTimeout returns how long a pull may make no progress; zero is without limit. It fails with
// ErrInvalidArgument.
func (c CRI) ProgressTimeout() (time.Duration, error) {
	d, err := time.ParseDuration(c.Images.ImagePullProgressTimeout)
	if err != nil {
		return 0, sectionError(ImagesSection, "image_pull_progress_timeout", err)
	}
	return d, nil
}

// WithoutSandboxImage returns the handlers whose runtime has its own sandbox image.
func (c CRI) WithoutSandboxImage() map[string]bool {
	names := make(map[string]bool)
	for name, h := range c.Runtime.Containerd.Runtimes {
		names[name] = h.DisablePauseImagePull
	}
	return names
}
