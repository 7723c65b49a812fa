package config

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/internal/upstream"
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

	// LookupInterval is how often the pins in use are looked up at their registries; with "0s" they are not.
	LookupInterval string `toml:"lookup_interval"`

	// Retain keeps the content of pinned images, even if image GC wants to remove it or the registry no longer has it.
	Retain bool `toml:"retain"`

	// MaxPinsPerNamespace is the maximum number of pins of one Kubernetes namespace, and of the node itself; 0 is
	// without limit.
	MaxPinsPerNamespace int `toml:"max_pins_per_namespace"`

	// MaxRetainedBytes is the maximum size of retained content, compressed as in the registry; 0 is without limit.
	MaxRetainedBytes int64 `toml:"max_retained_bytes"`

	// ManifestPullTimeout is how long a registry may take to resolve a reference to a digest. The minimum is 30s.
	ManifestPullTimeout string `toml:"manifest_pull_timeout"`

	// PullTimeout is how long a pull may take in total; with "0s" it has no limit. It must be more than
	// ManifestPullTimeout.
	PullTimeout string `toml:"pull_timeout"`

	// MaxDownloadRate is how many bytes a second the node receives from registries at most, such as "10MiB"; "0" is without
	// limit.
	MaxDownloadRate string `toml:"max_download_rate"`

	// MaxConcurrentUnpacks is how many layers of one image are unpacked at once, if the snapshotter supports it
	// (capability "rebase", for example overlayfs). 1 unpacks one layer after the other. If it has its default, the
	// same key of [TransferSection] takes precedence.
	MaxConcurrentUnpacks int `toml:"max_concurrent_unpacks"`

	// Sync makes images durable before they are recorded as ready, see package durable.
	Sync bool `toml:"sync"`

	// Handlers has settings of runtime handlers that containerd's own configuration does not have.
	Handlers map[string]HandlerConfig `toml:"handlers"`

	// Cluster has the settings of pins in the Kubernetes API.
	Cluster ClusterConfig `toml:"cluster"`

	// Locked is what happens to a reference that the node's lock does not name: "off", "warn" or "strict".
	Locked string `toml:"locked"`

	// NewRevision is what the first container of a revision runs if the node has an image of its tag: "node" or "resolve".
	NewRevision string `toml:"new_revision"`

	// ResolveAt is which hosts of a registry resolve tags: "hosts" with the capability resolve, or only the "origin".
	ResolveAt string `toml:"resolve_at"`
	// Verify is when the image verifier plugins are called: "pull", or "run" for pulls and for each container that is created.
	Verify string `toml:"verify"`

	// LocksDirectory has locks, and BundlesDirectory bundles, that are applied at the start. An empty path means none.
	LocksDirectory   string `toml:"locks_directory"`
	BundlesDirectory string `toml:"bundles_directory"`

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
	Locked             string   `toml:"locked,omitempty"`
	NewRevision        string   `toml:"new_revision,omitempty"`
	ResolveAt          string   `toml:"resolve_at,omitempty"`
	Verify             string   `toml:"verify,omitempty"`
	// AllowPodOverride lets pods override behavior and consistency with the annotations io.imagepin.pull-behavior and
	// io.imagepin.version-consistency.
	AllowPodOverride bool `toml:"allow_pod_override,omitempty"`
}

// HandlerConfig has the settings of one runtime handler.
type HandlerConfig struct {
	// Isolation is "process" or "hypervisor". It determines which builds of Windows images a handler can run, and has
	// no meaning on other systems.
	Isolation string `toml:"isolation"`

	// GuestPull reports that the guest of the handler pulls images itself. Its runtime is given the digest of an image instead
	// of its tag.
	GuestPull bool `toml:"guest_pull,omitempty"`
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
		WorkloadLabels:       []string{"pod-template-hash", upstream.RevisionLabel},
		PinTTL:               (30 * 24 * time.Hour).String(),
		LookupInterval:       time.Duration(0).String(),
		MaxPinsPerNamespace:  1000,
		MaxRetainedBytes:     10 << 30,
		ManifestPullTimeout:  time.Minute.String(),
		PullTimeout:          time.Duration(0).String(),
		MaxDownloadRate:      "0",
		MaxConcurrentUnpacks: defaultOwnUnpacks,
		Sync:                 true,
		Locked:               string(policy.LockedOff),
		NewRevision:          string(policy.FromNode),
		ResolveAt:            string(policy.ResolveAtHosts),
		Verify:               string(policy.VerifyPull),
		LocksDirectory:       defaultLocksDirectory,
		BundlesDirectory:     defaultBundlesDirectory,
		Handlers:             map[string]HandlerConfig{},
		Cluster:              defaultCluster(),
		Rules:                []RuleConfig{},
	}
}

// Settings is a Config that has been checked.
type Settings struct {
	ManifestPullTimeout  time.Duration
	PullTimeout          time.Duration // 0 is without limit
	MaxDownloadRate      int64         // bytes per second; 0 is without limit
	MaxConcurrentUnpacks int
	// Sync makes images durable before they are recorded as ready.
	Sync bool
	// Isolation is the isolation of runtime handlers, by name.
	Isolation map[string]runtimeplatform.Isolation
	// GuestPull has the runtime handlers whose guests pull images themselves.
	GuestPull map[string]bool
	Policy    *policy.Policy
	// PinTTL is how long an unused pin is kept; with zero it never expires.
	PinTTL time.Duration
	// LookupInterval is how often the pins in use are looked up at their registries; with zero they are not.
	LookupInterval time.Duration
	// MaxPinsPerNamespace and MaxRetainedBytes are without limit if zero.
	MaxPinsPerNamespace int
	MaxRetainedBytes    int64
	Cluster             Cluster
	// LocksDirectory and BundlesDirectory are absolute paths, or empty.
	LocksDirectory, BundlesDirectory string
}

// Table is a Config as containerd decodes it. If containerd decoded it into a struct, it would only log unknown keys. A
// table keeps them, so that they can be rejected.
type Table map[string]any

// DefaultTable returns a table that has every key with its default.
func DefaultTable() (*Table, error) { return tableOf(DefaultConfig()) }

func tableOf(section any) (*Table, error) {
	b, err := toml.Marshal(section)
	if err != nil {
		return nil, err
	}
	s := Table{}
	return &s, toml.Unmarshal(b, &s)
}

// Check decodes a section strictly and validates it. It returns the errors of all keys, see [Errors]. They are
// ErrInvalidArgument and name the section and the key.
func (s Table) Check() (Settings, error) {
	c := DefaultConfig()
	decoded := decodeStrictly(Section, s, &c)
	settings, err := c.check()
	return settings, errors.Join(decoded, err)
}

// decodeStrictly decodes a section and rejects unknown keys. It decodes one key after the other, so that it returns the
// errors of all of them. Errors are [KeyError].
func decodeStrictly(section string, table map[string]any, into any) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(table)) {
		b, err := toml.Marshal(map[string]any{key: table[key]})
		if err != nil {
			errs = append(errs, sectionError(section, key, err))
			continue
		}
		err = toml.NewDecoder(bytes.NewReader(b)).DisallowUnknownFields().Decode(into)
		errs = append(errs, decodeErrors(section, err, into)...)
	}
	return errors.Join(errs...)
}

// decodeErrors returns the errors for an error of decoding into a value.
func decodeErrors(section string, err error, into any) []error {
	if err == nil {
		return nil
	}
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		return unknownKeys(section, unknown, into)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		return []error{sectionError(section, strings.Join(decode.Key(), "."), errors.New(decode.Error()))}
	}
	return []error{sectionError(section, "", err)}
}

// check validates the values. It returns the errors of all keys.
func (c Config) check() (Settings, error) {
	var errs []error
	wrong := func(key string, err error) {
		if err != nil {
			errs = append(errs, keyError(key, err))
		}
	}
	timeout, err := time.ParseDuration(c.ManifestPullTimeout)
	if err == nil && timeout < minManifestPullTimeout {
		err = fmt.Errorf("%s is less than %s", timeout, minManifestPullTimeout)
	}
	wrong("manifest_pull_timeout", err)
	whole, err := time.ParseDuration(c.PullTimeout)
	if err == nil && whole != 0 && whole <= timeout {
		err = fmt.Errorf("%s is not more than manifest_pull_timeout (%s): a pull could not use the image on the node if no registry answers", whole, timeout)
	}
	wrong("pull_timeout", err)
	downloadRate, err := rateOf(c.MaxDownloadRate)
	wrong("max_download_rate", err)
	if c.MaxConcurrentUnpacks < 1 {
		wrong("max_concurrent_unpacks", fmt.Errorf("%d is less than 1", c.MaxConcurrentUnpacks))
	}
	ttl, err := time.ParseDuration(c.PinTTL)
	if err == nil && (ttl < 0 || ttl > 0 && ttl < minPinTTL) {
		err = fmt.Errorf("%s is less than %s", ttl, minPinTTL)
	}
	wrong("pin_ttl", err)
	lookups, err := lookupInterval(c.LookupInterval)
	wrong("lookup_interval", err)
	if c.MaxPinsPerNamespace < 0 {
		wrong("max_pins_per_namespace", fmt.Errorf("%d is less than 0", c.MaxPinsPerNamespace))
	}
	if c.MaxRetainedBytes < 0 {
		wrong("max_retained_bytes", fmt.Errorf("%d is less than 0", c.MaxRetainedBytes))
	}
	wrong("locks_directory", absolute(c.LocksDirectory))
	wrong("bundles_directory", absolute(c.BundlesDirectory))
	cluster, err := c.Cluster.check()
	errs = append(errs, only(err)...)
	rules, err := c.policy()
	if errs = append(errs, only(err)...); len(errs) > 0 {
		return Settings{}, errors.Join(errs...)
	}
	s := Settings{
		Policy:               rules,
		PinTTL:               ttl,
		LookupInterval:       lookups,
		MaxPinsPerNamespace:  c.MaxPinsPerNamespace,
		MaxRetainedBytes:     c.MaxRetainedBytes,
		ManifestPullTimeout:  timeout,
		PullTimeout:          whole,
		MaxDownloadRate:      downloadRate,
		MaxConcurrentUnpacks: c.MaxConcurrentUnpacks,
		Sync:                 c.Sync,
		Cluster:              cluster,
		LocksDirectory:       c.LocksDirectory,
		BundlesDirectory:     c.BundlesDirectory,
		Isolation:            make(map[string]runtimeplatform.Isolation, len(c.Handlers)),
		GuestPull:            make(map[string]bool),
	}
	for name, h := range c.Handlers {
		s.Isolation[name] = runtimeplatform.Isolation(h.Isolation)
		if h.GuestPull {
			s.GuestPull[name] = true
		}
	}
	return s, nil
}

// rateOf parses a number of bytes per second.
func rateOf(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := units.RAMInBytes(text)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a size such as \"10MiB\"", text)
	}
	return n, nil
}

func absolute(dir string) error {
	if dir != "" && !filepath.IsAbs(dir) {
		return fmt.Errorf("%q is not an absolute path", dir)
	}
	return nil
}

// policy compiles the rules. It returns an error of each rule that is invalid.
func (c Config) policy() (*policy.Policy, error) {
	defaults := policy.Rule{
		Behavior: policy.Behavior(c.PullBehavior), Consistency: policy.Consistency(c.VersionConsistency), Retain: c.Retain,
		Locked: policy.Locked(c.Locked), NewRevision: policy.NewRevision(c.NewRevision), ResolveAt: policy.ResolveAt(c.ResolveAt),
		Verify: policy.Verify(c.Verify),
	}
	_, err := policy.New(defaults, nil, c.WorkloadLabels)
	var errs []error
	if err != nil {
		errs = append(errs, policyError(err))
		defaults.Behavior, defaults.Consistency, defaults.Locked = policy.Default, policy.Off, policy.LockedOff
		defaults.NewRevision, defaults.ResolveAt, defaults.Verify = policy.FromNode, policy.ResolveAtHosts, policy.VerifyPull
	}
	var rules []policy.Rule
	for i, r := range c.Rules {
		compiled := c.rule(i+1, r)
		if err := checkRule(i+1, defaults, compiled, c.WorkloadLabels); err != nil {
			errs = append(errs, err)
		}
		rules = append(rules, compiled...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p, err := policy.New(defaults, rules, c.WorkloadLabels)
	if err != nil {
		return nil, policyError(err)
	}
	return p, nil
}

// rule returns a rule for each glob of a rule of the configuration.
func (c Config) rule(number int, r RuleConfig) (rules []policy.Rule) {
	rule := policy.Rule{
		Number: number, Behavior: policy.Behavior(r.PullBehavior), Consistency: policy.Consistency(r.VersionConsistency),
		Retain: c.Retain, AllowPodOverride: r.AllowPodOverride, Locked: policy.Locked(r.Locked),
		NewRevision: policy.NewRevision(r.NewRevision), ResolveAt: policy.ResolveAt(r.ResolveAt),
		Verify: policy.Verify(r.Verify),
	}
	if r.Retain != nil {
		rule.Retain = *r.Retain
	}
	for _, glob := range r.Match {
		rule.Match = glob
		rules = append(rules, rule)
	}
	return rules
}

func checkRule(number int, defaults policy.Rule, rules []policy.Rule, labels []string) error {
	if len(rules) == 0 {
		return keyError(fmt.Sprintf("rules[%d].match", number), errors.New("must not be empty"))
	}
	if _, err := policy.New(defaults, rules, labels); err != nil {
		return policyError(err)
	}
	return nil
}

// policyError adds the section to an error of package policy, which names its key.
func policyError(err error) error {
	e := &KeyError{Section: Section, Err: err}
	var wrong *policy.Error
	switch {
	case !errors.As(err, &wrong):
	case wrong.Rule > 0:
		e.path = "rules"
	default:
		e.path = wrong.Key
	}
	return e
}
