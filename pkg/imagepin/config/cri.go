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
	// ImagesSection is that of containerd's CRI image plugin.
	ImagesSection = "io.containerd.cri.v1.images"
	// RuntimeSection is that of containerd's CRI runtime plugin.
	RuntimeSection = "io.containerd.cri.v1.runtime"
)

// Images is what is read of [plugins."io.containerd.cri.v1.images"]. The
// keys are those of containerd's ImageConfig (internal/cri/config/config.go),
// whose type is not public.
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

// Platform is one of runtime_platforms.
type Platform struct {
	Platform    string `toml:"platform"`
	Snapshotter string `toml:"snapshotter"`
}

// Registry is how registries are reached.
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

// Runtime is what is read of [plugins."io.containerd.cri.v1.runtime"].
type Runtime struct {
	Containerd struct {
		DefaultRuntimeName string             `toml:"default_runtime_name"`
		Runtimes           map[string]Handler `toml:"runtimes"`
	} `toml:"containerd"`
}

// Handler is what is read of one of containerd.runtimes.
type Handler struct {
	Type                  string         `toml:"runtime_type"`
	Snapshotter           string         `toml:"snapshotter"`
	DisablePauseImagePull bool           `toml:"disable_pause_image_pull"`
	Options               map[string]any `toml:"options"`
}

// CRI is the configuration of containerd's CRI plugins, and of what they pull by.
type CRI struct {
	Images  Images
	Runtime Runtime
	// Transfer is nil where nothing is known of it.
	Transfer *Transfer
}

// Handlers are the runtime handlers. snapshotters are those that are loaded.
// An error names the key that is wrong.
func (c CRI) Handlers(own Settings, loaded func(snapshotter string) bool) (*runtimeplatform.Set, error) {
	if !loaded(c.Images.Snapshotter) {
		return nil, sectionError(ImagesSection, "snapshotter", fmt.Errorf("snapshotter %q is not loaded", c.Images.Snapshotter))
	}
	runtimes := c.Runtime.Containerd.Runtimes
	for _, name := range slices.Sorted(maps.Keys(c.Images.RuntimePlatforms)) {
		if _, ok := runtimes[name]; !ok {
			return nil, sectionError(ImagesSection, "runtime_platforms."+name, errors.New("there is no such runtime handler"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own.Isolation)) {
		if _, ok := runtimes[name]; !ok {
			return nil, keyError("handlers."+name, errors.New("there is no such runtime handler"))
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
			return nil, sectionError(RuntimeSection, "containerd.runtimes."+name+".snapshotter",
				fmt.Errorf("snapshotter %q is not loaded", h.Snapshotter))
		}
		handlers = append(handlers, h)
	}
	set, err := runtimeplatform.New(c.Runtime.Containerd.DefaultRuntimeName, handlers, runtimeplatform.Host{})
	var wrong *runtimeplatform.ConfigError
	if errors.As(err, &wrong) {
		return nil, c.handlerError(wrong)
	}
	return set, err
}

// handlerError says in which section and key a handler is configured wrongly.
func (c CRI) handlerError(wrong *runtimeplatform.ConfigError) error {
	switch wrong.Key {
	case "platform":
		return sectionError(ImagesSection, "runtime_platforms."+wrong.Handler+".platform", wrong)
	case "isolation":
		return keyError("handlers."+wrong.Handler+".isolation", wrong)
	case "default_runtime_name":
		return sectionError(RuntimeSection, "containerd.default_runtime_name", wrong)
	}
	return sectionError(RuntimeSection, "containerd.runtimes."+wrong.Handler, wrong)
}

// Unheeded says by name what containerd's configuration asks for and is not
// done.
func (c CRI) Unsupported() []string {
	var all []string
	warn := func(section, key, why string) {
		all = append(all, fmt.Sprintf("[plugins.%q] %s is not heeded: %s", section, key, why))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Images.RuntimePlatforms)) {
		want := c.Images.RuntimePlatforms[name].Snapshotter
		have := c.Runtime.Containerd.Runtimes[name].Snapshotter
		if have == "" {
			have = c.Images.Snapshotter
		}
		if want != "" && want != have {
			warn(ImagesSection, "runtime_platforms."+name+".snapshotter",
				fmt.Sprintf("containers of handler %s are made in %q, as containerd.runtimes.%s.snapshotter says", name, have, name))
		}
	}
	if m := c.Images.ImageDecryption.KeyModel; m != "" && m != "node" {
		warn(ImagesSection, "image_decryption.key_model", fmt.Sprintf("there is no key model %q", m))
	}
	c.unsupportedTransfer(warn)
	return all
}

// Registry is how registries are reached.
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

// SandboxImage is the image that sandboxes are made of.
func (c CRI) SandboxImage() string { return c.Images.PinnedImages["sandbox"] }

// PinnedImages are the references that must not be removed by kubelet. What is
// not a reference is compared as it stands, as containerd does.
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

// ProgressTimeout is how long a pull may make no progress; zero is for ever.
func (c CRI) ProgressTimeout() (time.Duration, error) {
	d, err := time.ParseDuration(c.Images.ImagePullProgressTimeout)
	if err != nil {
		return 0, sectionError(ImagesSection, "image_pull_progress_timeout", err)
	}
	return d, nil
}

// WithoutSandboxImage are the handlers whose runtime brings its own.
func (c CRI) WithoutSandboxImage() map[string]bool {
	names := make(map[string]bool)
	for name, h := range c.Runtime.Containerd.Runtimes {
		names[name] = h.DisablePauseImagePull
	}
	return names
}
