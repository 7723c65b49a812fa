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

// Section is the name of imagepin's section in a configuration file, and the URI of its plugin of containerd.
const Section = "io.containerd.imagepin.v1.images"

// Config is imagepin's section:
//
//	[plugins."io.containerd.imagepin.v1.images"]
//
// Settings that containerd's CRI plugins also have are read from their sections, and are not repeated here.
type Config struct {
	// PullBehavior is what a pull does: "default", "always", "once" or "prefer-cached".
	PullBehavior string `toml:"pull_behavior"`

	// VersionConsistency is the scope in which a reference stays at the first digest that it resolves to: "off", "node"
	// or "workload".
	VersionConsistency string `toml:"version_consistency"`

	// WorkloadLabels are the pod labels that identify a revision of a workload, in order of preference.
	WorkloadLabels []string `toml:"workload_labels"`

	// PinTTL is how long an unused pin is kept; with "0s" it never expires.
	PinTTL string `toml:"pin_ttl"`

	// Retain keeps the content of pinned images, even if image GC wants to remove it or the registry no longer has it.
	Retain bool `toml:"retain"`

	// MaxPinsPerNamespace is the maximum number of pins of one Kubernetes namespace, and of the node itself; 0 is
	// without limit.
	MaxPinsPerNamespace int `toml:"max_pins_per_namespace"`

	// MaxRetainedBytes is the maximum size of retained content, compressed as in the registry; 0 is without limit.
	MaxRetainedBytes int64 `toml:"max_retained_bytes"`

	// ManifestPullTimeout is how long a registry may take to resolve a reference to a digest. The minimum is 30s.
	ManifestPullTimeout string `toml:"manifest_pull_timeout"`

	// MaxConcurrentUnpacks is how many layers of one image are unpacked at once, if the snapshotter supports it
	// (capability "rebase", for example overlayfs). 1 unpacks one layer after the other. If it has its default, the
	// same key of [TransferSection] takes precedence.
	MaxConcurrentUnpacks int `toml:"max_concurrent_unpacks"`

	// Handlers has settings of runtime handlers that containerd's own configuration does not have.
	Handlers map[string]HandlerConfig `toml:"handlers"`

	// Cluster has the settings of pins in the Kubernetes API.
	Cluster ClusterConfig `toml:"cluster"`

	// Rules override the settings for the references that they match. The first matching rule wins.
	Rules []RuleConfig `toml:"rules"`
}

// RuleConfig is a rule for the references that it matches. A field that is not set has the value of the section.
type RuleConfig struct {
	// Match are globs over normalized references (docker.io/library/busybox:1). "*" matches any text without a slash,
	// "**" matches any text.
	Match              []string `toml:"match"`
	PullBehavior       string   `toml:"pull_behavior,omitempty"`
	VersionConsistency string   `toml:"version_consistency,omitempty"`
	Retain             *bool    `toml:"retain,omitempty"`
	// AllowPodOverride lets pods override behavior and consistency with the annotations io.imagepin.pull-behavior and
	// io.imagepin.version-consistency.
	AllowPodOverride bool `toml:"allow_pod_override,omitempty"`
}

// HandlerConfig has the settings of one runtime handler.
type HandlerConfig struct {
	// Isolation is "process" or "hypervisor". It determines which builds of Windows images a handler can run, and has
	// no meaning on other systems.
	Isolation string `toml:"isolation"`
}

// minManifestPullTimeout prevents a slow registry from being treated as a broken one.
const minManifestPullTimeout = 30 * time.Second

// minPinTTL is one day, which is the precision of the last use of a pin.
const minPinTTL = 24 * time.Hour

// DefaultConfig returns the defaults of the section.
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
		Cluster:              defaultCluster(),
		Rules:                []RuleConfig{},
	}
}

// Settings is a Config that has been checked.
type Settings struct {
	ManifestPullTimeout  time.Duration
	MaxConcurrentUnpacks int
	// Isolation is the isolation of runtime handlers, by name.
	Isolation map[string]runtimeplatform.Isolation
	Policy    *policy.Policy
	// PinTTL is how long an unused pin is kept; with zero it never expires.
	PinTTL time.Duration
	// MaxPinsPerNamespace and MaxRetainedBytes are without limit if zero.
	MaxPinsPerNamespace int
	MaxRetainedBytes    int64
	Cluster             Cluster
}

// Table is a Config as containerd decodes it. If containerd decoded it into a struct, it would only log unknown keys. A
// table keeps them, so that they can be rejected.
type Table map[string]any

// DefaultTable returns a table that has every key with its default.
func DefaultTable() (*Table, error) {
	b, err := toml.Marshal(DefaultConfig())
	if err != nil {
		return nil, err
	}
	s := Table{}
	return &s, toml.Unmarshal(b, &s)
}

// Check decodes a section strictly and validates it. Errors are ErrInvalidArgument and name the section and the key.
func (s Table) Check() (Settings, error) {
	c := DefaultConfig()
	if err := decodeStrictly(Section, s, &c); err != nil {
		return Settings{}, err
	}
	return c.check()
}

// decodeStrictly decodes a section and rejects unknown keys. Errors are ErrInvalidArgument and name the section and the
// key.
func decodeStrictly(section string, table map[string]any, into any) error {
	b, err := toml.Marshal(table)
	if err != nil {
		return sectionError(section, "", err)
	}
	err = toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(into)
	if err == nil {
		return nil
	}
	key, err := decodeError(err, into)
	return sectionError(section, key, err)
}

// decodeError returns a short error for an error of decoding into a value, and its key if the error does not name it.
func decodeError(err error, into any) (key string, _ error) {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		return "", unknownKeys(unknown, into)
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
	cluster, err := c.Cluster.check()
	if err != nil {
		return Settings{}, err
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
		Cluster:              cluster,
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
			return nil, keyError(fmt.Sprintf("rules[%d].match", i+1), errors.New("must not be empty"))
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

// keyError adds imagepin's section and a key to an error.
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
