package imagepin

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Section is the name of the section of config.toml, and the plugin's URI.
const Section = "io.containerd.imagepin.v1.images"

// Config is the plugin's section of containerd's config.toml:
//
//	[plugins."io.containerd.imagepin.v1.images"]
//
// Everything that containerd's CRI plugins know already is read from their
// sections and not repeated here.
type Config struct {
	// ManifestPullTimeout is how long a registry may take to say which digest
	// a reference means. At least 30s.
	ManifestPullTimeout string `toml:"manifest_pull_timeout"`

	// MaxConcurrentUnpacks is how many layers of one image are unpacked at
	// once where the snapshotter can (capability "rebase", as overlayfs). 1
	// unpacks one after the other.
	MaxConcurrentUnpacks int `toml:"max_concurrent_unpacks"`

	// Handlers has what containerd's own configuration cannot say of a
	// runtime handler.
	Handlers map[string]HandlerConfig `toml:"handlers"`
}

// HandlerConfig is what is configured for one runtime handler.
type HandlerConfig struct {
	// Isolation is "process" or "hypervisor". It says which builds of Windows
	// images a handler can run, and means nothing on other systems.
	Isolation string `toml:"isolation"`
}

// minManifestPullTimeout keeps a slow registry from looking like a broken one.
const minManifestPullTimeout = 30 * time.Second

// DefaultConfig is what holds where the section says nothing.
func DefaultConfig() Config {
	return Config{
		ManifestPullTimeout:  time.Minute.String(),
		MaxConcurrentUnpacks: 4,
		Handlers:             map[string]HandlerConfig{},
	}
}

// settings is a Config that has been checked.
type settings struct {
	manifestPullTimeout  time.Duration
	maxConcurrentUnpacks int
	isolation            map[string]runtimeplatform.Isolation
}

// section is the Config as containerd decodes it. Into a struct, containerd
// would decode what it knows and only log the rest; a table keeps unknown keys,
// so that they can be refused.
type section map[string]any

func defaultSection() (*section, error) {
	b, err := toml.Marshal(DefaultConfig())
	if err != nil {
		return nil, err
	}
	s := section{}
	return &s, toml.Unmarshal(b, &s)
}

// check decodes a section strictly and validates it. Errors are
// ErrInvalidArgument and name the section and the key.
func (s section) check() (settings, error) {
	b, err := toml.Marshal(map[string]any(s))
	if err != nil {
		return settings{}, keyError("", err)
	}
	c := DefaultConfig()
	d := toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		var unknown *toml.StrictMissingError
		if errors.As(err, &unknown) {
			keys := make([]string, len(unknown.Errors))
			for i, e := range unknown.Errors {
				keys[i] = strings.Join(e.Key(), ".")
			}
			return settings{}, keyError(strings.Join(keys, ", "), errors.New("no such key"))
		}
		var decode *toml.DecodeError
		if errors.As(err, &decode) {
			return settings{}, keyError(strings.Join(decode.Key(), "."), errors.New(decode.Error()))
		}
		return settings{}, keyError("", err)
	}
	return c.check()
}

func (c Config) check() (settings, error) {
	timeout, err := time.ParseDuration(c.ManifestPullTimeout)
	if err != nil {
		return settings{}, keyError("manifest_pull_timeout", err)
	}
	if timeout < minManifestPullTimeout {
		return settings{}, keyError("manifest_pull_timeout", fmt.Errorf("%s is less than %s", timeout, minManifestPullTimeout))
	}
	if c.MaxConcurrentUnpacks < 1 {
		return settings{}, keyError("max_concurrent_unpacks", fmt.Errorf("%d is less than 1", c.MaxConcurrentUnpacks))
	}
	s := settings{
		manifestPullTimeout:  timeout,
		maxConcurrentUnpacks: c.MaxConcurrentUnpacks,
		isolation:            make(map[string]runtimeplatform.Isolation, len(c.Handlers)),
	}
	for name, h := range c.Handlers {
		s.isolation[name] = runtimeplatform.Isolation(h.Isolation)
	}
	return s, nil
}

// keyError says which key of the plugin's section is wrong.
func keyError(key string, err error) error {
	return sectionError(Section, key, err)
}

func sectionError(section, key string, err error) error {
	where := fmt.Sprintf("[plugins.%q]", section)
	if key != "" {
		where += " " + key
	}
	return fmt.Errorf("%s: %w: %w", where, err, errdefs.ErrInvalidArgument)
}
