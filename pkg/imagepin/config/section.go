package config

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Section is the name of our section of a configuration file, and the URI of
// our plugin of containerd.
const Section = "io.containerd.imagepin.v1.images"

// Config is our section:
//
//	[plugins."io.containerd.imagepin.v1.images"]
//
// Everything that containerd's CRI plugins know already is read from their
// sections and not repeated here.
type Config struct {
	// PullBehavior is what a pull does when it is called: "default", "always",
	// "once" or "prefer-cached".
	PullBehavior string `toml:"pull_behavior"`

	// VersionConsistency is for whom the first digest that a reference resolves
	// to sticks: "off", "node" or "workload".
	VersionConsistency string `toml:"version_consistency"`

	// WorkloadLabels are the pod labels that name a revision of a workload, in
	// order of preference.
	WorkloadLabels []string `toml:"workload_labels"`

	// PinTTL is how long a pin that nothing uses is kept; "0s" for ever.
	PinTTL string `toml:"pin_ttl"`

	// Retain keeps the content of what is pinned, through image GC and a
	// registry that no longer has it.
	Retain bool `toml:"retain"`

	// MaxPinsPerNamespace bounds the pins of one Kubernetes namespace, and of
	// the node itself; 0 does not.
	MaxPinsPerNamespace int `toml:"max_pins_per_namespace"`

	// MaxRetainedBytes bounds what is retained, as registries have it; 0 does
	// not.
	MaxRetainedBytes int64 `toml:"max_retained_bytes"`

	// ManifestPullTimeout is how long a registry may take to say which digest
	// a reference means. At least 30s.
	ManifestPullTimeout string `toml:"manifest_pull_timeout"`

	// MaxConcurrentUnpacks is how many layers of one image are unpacked at
	// once where the snapshotter can (capability "rebase", as overlayfs). 1
	// unpacks one after the other. Its default gives way to the same key of
	// [TransferSection].
	MaxConcurrentUnpacks int `toml:"max_concurrent_unpacks"`

	// Handlers has what containerd's own configuration cannot say of a
	// runtime handler.
	Handlers map[string]HandlerConfig `toml:"handlers"`

	// Rules say otherwise for the references they match; the first that
	// matches wins.
	Rules []RuleConfig `toml:"rules"`
}

// RuleConfig is how matching references are treated. What is left out is as
// for all others.
type RuleConfig struct {
	// Match are globs over normalized references (docker.io/library/busybox:1).
	// "*" stands for any text without a slash, "**" for any text.
	Match              []string `toml:"match"`
	PullBehavior       string   `toml:"pull_behavior,omitempty"`
	VersionConsistency string   `toml:"version_consistency,omitempty"`
	Retain             *bool    `toml:"retain,omitempty"`
	// AllowPodOverride lets pods change behavior and consistency by the
	// annotations io.imagepin.pull-behavior and
	// io.imagepin.version-consistency.
	AllowPodOverride bool `toml:"allow_pod_override,omitempty"`
}

// HandlerConfig is what is configured for one runtime handler.
type HandlerConfig struct {
	// Isolation is "process" or "hypervisor". It says which builds of Windows
	// images a handler can run, and means nothing on other systems.
	Isolation string `toml:"isolation"`
}

// minManifestPullTimeout keeps a slow registry from looking like a broken one.
const minManifestPullTimeout = 30 * time.Second

// minPinTTL is a day, which is how exactly the last use of a pin is known.
const minPinTTL = 24 * time.Hour

// DefaultConfig is what holds where the section says nothing.
func DefaultConfig() Config {
	return Config{
		PullBehavior:         string(policy.Default),
		VersionConsistency:   string(policy.Off),
		WorkloadLabels:       []string{"pod-template-hash", "controller-revision-hash"},
		PinTTL:               (30 * 24 * time.Hour).String(),
		MaxPinsPerNamespace:  1000,
		MaxRetainedBytes:     10 << 30,
		ManifestPullTimeout:  time.Minute.String(),
		MaxConcurrentUnpacks: defaultOwnUnpacks,
		Handlers:             map[string]HandlerConfig{},
		Rules:                []RuleConfig{},
	}
}

// Settings is a Config that has been checked.
type Settings struct {
	ManifestPullTimeout  time.Duration
	MaxConcurrentUnpacks int
	// Isolation is that of runtime handlers, by name.
	Isolation map[string]runtimeplatform.Isolation
	Policy    *policy.Policy
	// PinTTL is how long an unused pin is kept; zero is for ever.
	PinTTL time.Duration
	// MaxPinsPerNamespace and MaxRetainedBytes are no limits where zero.
	MaxPinsPerNamespace int
	MaxRetainedBytes    int64
}

// Table is the Config as containerd decodes it. Into a struct, containerd
// would decode what it knows and only log the rest; a table keeps unknown keys,
// so that they can be refused.
type Table map[string]any

// DefaultTable has every key with its default.
func DefaultTable() (*Table, error) {
	b, err := toml.Marshal(DefaultConfig())
	if err != nil {
		return nil, err
	}
	s := Table{}
	return &s, toml.Unmarshal(b, &s)
}

// Check decodes a section strictly and validates it. Errors are
// ErrInvalidArgument and name the section and the key.
func (s Table) Check() (Settings, error) {
	c := DefaultConfig()
	if err := decodeStrictly(Section, s, &c); err != nil {
		return Settings{}, err
	}
	return c.check()
}

// decodeStrictly decodes a section, all of whose keys must be known. Its error
// is ErrInvalidArgument and names the section and the key.
func decodeStrictly(section string, table map[string]any, into any) error {
	b, err := toml.Marshal(table)
	if err != nil {
		return sectionError(section, "", err)
	}
	err = toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(into)
	if err == nil {
		return nil
	}
	key, err := explain(err)
	return sectionError(section, key, err)
}

// explain gives the keys that an error of decoding is about.
func explain(err error) (key string, _ error) {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		keys := make([]string, len(unknown.Errors))
		for i, e := range unknown.Errors {
			keys[i] = strings.Join(e.Key(), ".")
		}
		return strings.Join(keys, ", "), errors.New("no such key")
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		return strings.Join(decode.Key(), "."), errors.New(decode.Error())
	}
	return "", err
}

func (c Config) check() (Settings, error) {
	timeout, err := time.ParseDuration(c.ManifestPullTimeout)
	if err != nil {
		return Settings{}, keyError("manifest_pull_timeout", err)
	}
	if timeout < minManifestPullTimeout {
		return Settings{}, keyError("manifest_pull_timeout", fmt.Errorf("%s is less than %s", timeout, minManifestPullTimeout))
	}
	if c.MaxConcurrentUnpacks < 1 {
		return Settings{}, keyError("max_concurrent_unpacks", fmt.Errorf("%d is less than 1", c.MaxConcurrentUnpacks))
	}
	ttl, err := time.ParseDuration(c.PinTTL)
	if err != nil {
		return Settings{}, keyError("pin_ttl", err)
	}
	if ttl < 0 || ttl > 0 && ttl < minPinTTL {
		return Settings{}, keyError("pin_ttl", fmt.Errorf("%s is less than %s", ttl, minPinTTL))
	}
	if c.MaxPinsPerNamespace < 0 {
		return Settings{}, keyError("max_pins_per_namespace", fmt.Errorf("%d is less than 0", c.MaxPinsPerNamespace))
	}
	if c.MaxRetainedBytes < 0 {
		return Settings{}, keyError("max_retained_bytes", fmt.Errorf("%d is less than 0", c.MaxRetainedBytes))
	}
	rules, err := c.policy()
	if err != nil {
		return Settings{}, err
	}
	s := Settings{
		Policy:               rules,
		PinTTL:               ttl,
		MaxPinsPerNamespace:  c.MaxPinsPerNamespace,
		MaxRetainedBytes:     c.MaxRetainedBytes,
		ManifestPullTimeout:  timeout,
		MaxConcurrentUnpacks: c.MaxConcurrentUnpacks,
		Isolation:            make(map[string]runtimeplatform.Isolation, len(c.Handlers)),
	}
	for name, h := range c.Handlers {
		s.Isolation[name] = runtimeplatform.Isolation(h.Isolation)
	}
	return s, nil
}

// policy compiles the rules.
func (c Config) policy() (*policy.Policy, error) {
	defaults := policy.Rule{
		Behavior: policy.Behavior(c.PullBehavior), Consistency: policy.Consistency(c.VersionConsistency), Retain: c.Retain,
	}
	var rules []policy.Rule
	for i, r := range c.Rules {
		if len(r.Match) == 0 {
			return nil, keyError(fmt.Sprintf("rules[%d].match", i+1), errors.New("is empty"))
		}
		rule := policy.Rule{
			Number: i + 1, Behavior: policy.Behavior(r.PullBehavior), Consistency: policy.Consistency(r.VersionConsistency),
			Retain: c.Retain, AllowPodOverride: r.AllowPodOverride,
		}
		if r.Retain != nil {
			rule.Retain = *r.Retain
		}
		for _, glob := range r.Match {
			rule.Match = glob
			rules = append(rules, rule)
		}
	}
	p, err := policy.New(defaults, rules, c.WorkloadLabels)
	if err != nil {
		return nil, keyError("", err)
	}
	return p, nil
}

// keyError says which key of our section is wrong.
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
