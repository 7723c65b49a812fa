package imagepin

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/distribution/reference"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	imagesSection  = "io.containerd.cri.v1.images"
	runtimeSection = "io.containerd.cri.v1.runtime"
)

// criImages is what is read of [plugins."io.containerd.cri.v1.images"]. The
// keys are those of containerd's ImageConfig (internal/cri/config/config.go),
// whose type is not public: what the plugin set holds is taken through TOML.
type criImages struct {
	Snapshotter                string                 `toml:"snapshotter"`
	DisableSnapshotAnnotations bool                   `toml:"disable_snapshot_annotations"`
	DiscardUnpackedLayers      bool                   `toml:"discard_unpacked_layers"`
	PinnedImages               map[string]string      `toml:"pinned_images"`
	RuntimePlatforms           map[string]criPlatform `toml:"runtime_platforms"`
	Registry                   criRegistry            `toml:"registry"`
	ImageDecryption            struct {
		KeyModel string `toml:"key_model"`
	} `toml:"image_decryption"`
	MaxConcurrentDownloads     int    `toml:"max_concurrent_downloads"`
	ConcurrentLayerFetchBuffer int    `toml:"concurrent_layer_fetch_buffer"`
	ImagePullProgressTimeout   string `toml:"image_pull_progress_timeout"`
	ImagePullWithSyncFS        bool   `toml:"image_pull_with_sync_fs"`
	StatsCollectPeriod         int    `toml:"stats_collect_period"`
}

type criPlatform struct {
	Platform    string `toml:"platform"`
	Snapshotter string `toml:"snapshotter"`
}

type criRegistry struct {
	ConfigPath string `toml:"config_path"`
	Mirrors    map[string]struct {
		Endpoints []string `toml:"endpoint"`
	} `toml:"mirrors"`
	Configs map[string]struct {
		Auth *criAuth `toml:"auth"`
	} `toml:"configs"`
	Headers map[string][]string `toml:"headers"`
}

type criAuth struct {
	Username      string `toml:"username"`
	Password      string `toml:"password"`
	Auth          string `toml:"auth"`
	IdentityToken string `toml:"identitytoken"`
}

// criRuntime is what is read of [plugins."io.containerd.cri.v1.runtime"].
type criRuntime struct {
	Containerd struct {
		DefaultRuntimeName string                `toml:"default_runtime_name"`
		Runtimes           map[string]criHandler `toml:"runtimes"`
	} `toml:"containerd"`
}

type criHandler struct {
	Type                  string         `toml:"runtime_type"`
	Snapshotter           string         `toml:"snapshotter"`
	DisablePauseImagePull bool           `toml:"disable_pause_image_pull"`
	Options               map[string]any `toml:"options"`
}

// inherited is the configuration of containerd's CRI plugins.
type inherited struct {
	images  criImages
	runtime criRuntime
}

func inherit(ic *plugin.InitContext) (inherited, error) {
	var c inherited
	if err := readSection(ic, "images", &c.images); err != nil {
		return inherited{}, err
	}
	if err := readSection(ic, "runtime", &c.runtime); err != nil {
		return inherited{}, err
	}
	return c, nil
}

func readSection(ic *plugin.InitContext, id string, out any) error {
	p := ic.Plugins().Get(plugins.CRIServicePlugin, id)
	if p == nil {
		return fmt.Errorf("plugin %s.%s is not loaded", plugins.CRIServicePlugin, id)
	}
	b, err := toml.Marshal(p.Config)
	if err != nil {
		return fmt.Errorf("read the configuration of %s: %w", p.Registration.URI(), err)
	}
	if err := toml.Unmarshal(b, out); err != nil {
		return fmt.Errorf("read the configuration of %s: %w", p.Registration.URI(), err)
	}
	return nil
}

// handlers are the runtime handlers. snapshotters are those that are loaded.
// An error names the key that is wrong.
func (c inherited) handlers(own settings, loaded func(snapshotter string) bool) (*runtimeplatform.Set, error) {
	if !loaded(c.images.Snapshotter) {
		return nil, sectionError(imagesSection, "snapshotter", fmt.Errorf("snapshotter %q is not loaded", c.images.Snapshotter))
	}
	runtimes := c.runtime.Containerd.Runtimes
	for _, name := range slices.Sorted(maps.Keys(c.images.RuntimePlatforms)) {
		if _, ok := runtimes[name]; !ok {
			return nil, sectionError(imagesSection, "runtime_platforms."+name, errors.New("there is no such runtime handler"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own.isolation)) {
		if _, ok := runtimes[name]; !ok {
			return nil, keyError("handlers."+name, errors.New("there is no such runtime handler"))
		}
	}
	var handlers []runtimeplatform.Handler
	for _, name := range slices.Sorted(maps.Keys(runtimes)) {
		h := runtimeplatform.Handler{
			Name:        name,
			Platform:    c.images.RuntimePlatforms[name].Platform,
			Snapshotter: runtimes[name].Snapshotter,
			Isolation:   own.isolation[name],
		}
		if h.Snapshotter == "" {
			h.Snapshotter = c.images.Snapshotter
		}
		if !loaded(h.Snapshotter) {
			return nil, sectionError(runtimeSection, "containerd.runtimes."+name+".snapshotter",
				fmt.Errorf("snapshotter %q is not loaded", h.Snapshotter))
		}
		handlers = append(handlers, h)
	}
	set, err := runtimeplatform.New(c.runtime.Containerd.DefaultRuntimeName, handlers, runtimeplatform.Host{})
	var wrong *runtimeplatform.ConfigError
	if errors.As(err, &wrong) {
		return nil, c.handlerError(wrong)
	}
	return set, err
}

// handlerError says in which section and key a handler is configured wrongly.
func (c inherited) handlerError(wrong *runtimeplatform.ConfigError) error {
	switch wrong.Key {
	case "platform":
		return sectionError(imagesSection, "runtime_platforms."+wrong.Handler+".platform", wrong)
	case "isolation":
		return keyError("handlers."+wrong.Handler+".isolation", wrong)
	case "default_runtime_name":
		return sectionError(runtimeSection, "containerd.default_runtime_name", wrong)
	}
	return sectionError(runtimeSection, "containerd.runtimes."+wrong.Handler, wrong)
}

// warnUnheeded says by name what containerd's configuration asks for and is not
// done.
func (c inherited) warnUnheeded(ic *plugin.InitContext) {
	warn := func(section, key, why string) {
		log.G(ic.Context).Warnf("[plugins.%q] %s is not heeded: %s", section, key, why)
	}
	for _, name := range slices.Sorted(maps.Keys(c.images.RuntimePlatforms)) {
		want := c.images.RuntimePlatforms[name].Snapshotter
		have := c.runtime.Containerd.Runtimes[name].Snapshotter
		if have == "" {
			have = c.images.Snapshotter
		}
		if want != "" && want != have {
			warn(imagesSection, "runtime_platforms."+name+".snapshotter",
				fmt.Sprintf("containers of handler %s are made in %q, as containerd.runtimes.%s.snapshotter says", name, have, name))
		}
	}
	if m := c.images.ImageDecryption.KeyModel; m != "" && m != "node" {
		warn(imagesSection, "image_decryption.key_model", fmt.Sprintf("there is no key model %q", m))
	}
}

// registry is how registries are reached.
func (c inherited) registry() resolve.RegistryConfig {
	r := c.images.Registry
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

// sandboxImage is the image that sandboxes are made of.
func (c inherited) sandboxImage() string { return c.images.PinnedImages["sandbox"] }

// pinnedImages are the references that must not be removed by kubelet. What is
// not a reference is compared as it stands, as containerd does.
func (c inherited) pinnedImages() []string {
	var refs []string
	for _, name := range slices.Sorted(maps.Keys(c.images.PinnedImages)) {
		image := c.images.PinnedImages[name]
		if ref, err := reference.ParseDockerRef(image); err == nil {
			image = ref.String()
		}
		refs = append(refs, image)
	}
	return refs
}

// progressTimeout is how long a pull may make no progress; zero is for ever.
func (c inherited) progressTimeout() (time.Duration, error) {
	d, err := time.ParseDuration(c.images.ImagePullProgressTimeout)
	if err != nil {
		return 0, sectionError(imagesSection, "image_pull_progress_timeout", err)
	}
	return d, nil
}

// withoutSandboxImage are the handlers whose runtime brings its own.
func (c inherited) withoutSandboxImage() map[string]bool {
	names := make(map[string]bool)
	for name, h := range c.runtime.Containerd.Runtimes {
		names[name] = h.DisablePauseImagePull
	}
	return names
}
