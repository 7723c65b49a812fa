package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// parse decodes a section as containerd does.
func parse(t *testing.T, text string) Table {
	t.Helper()
	s, err := DefaultTable()
	if err != nil {
		t.Fatal(err)
	}
	if err := toml.Unmarshal([]byte(text), s); err != nil {
		t.Fatal(err)
	}
	return *s
}

// TestDefaultTableHasEveryKey checks that the defaults, which `containerd config default` prints, have every key.
func TestDefaultTableHasEveryKey(t *testing.T) {
	s, err := DefaultTable()
	if err != nil {
		t.Fatal(err)
	}
	c := reflect.TypeFor[Config]()
	for i := range c.NumField() {
		key, _, _ := strings.Cut(c.Field(i).Tag.Get("toml"), ",")
		if _, ok := (*s)[key]; !ok || key == "" {
			t.Errorf("%s: key %q is missing", c.Field(i).Name, key)
		}
	}
	if len(*s) != c.NumField() {
		t.Errorf("%d keys, want %d", len(*s), c.NumField())
	}
	b, err := toml.Marshal(*s)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := parse(t, string(b)).Check(); err != nil || again.ManifestPullTimeout != time.Minute || again.PullTimeout != 0 || again.MaxDownloadRate != 0 || again.MaxConcurrentUnpacks != 4 {
		t.Errorf("parsing the default section: got %+v, %v", again, err)
	}
	if _, err := (Table{}).Check(); err != nil {
		t.Errorf("checking an empty section: %v", err)
	}
	other, err := DefaultTable()
	if err != nil {
		t.Fatal(err)
	}
	(*other)["manifest_pull_timeout"] = "2m"
	if (*s)["manifest_pull_timeout"] != "1m0s" {
		t.Error("tables share memory")
	}
}

func TestSection(t *testing.T) {
	good, err := parse(t, "manifest_pull_timeout = '90s'\npull_timeout = '91s'\nmax_download_rate = '10MiB'\nmax_concurrent_unpacks = 1\n[handlers.win]\nisolation = 'hypervisor'").Check()
	if err != nil {
		t.Fatal(err)
	}
	if good.ManifestPullTimeout != 90*time.Second || good.PullTimeout != 91*time.Second || good.MaxDownloadRate != 10<<20 || good.MaxConcurrentUnpacks != 1 || good.Isolation["win"] != runtimeplatform.IsolationHypervisor {
		t.Errorf("unexpected settings %+v", good)
	}
	for text, want := range map[string]string{
		"no_such_key = 1":                              `unknown key "no_such_key"`,
		"one = 1\ntwo = 2":                             `unknown key "two"`,
		"[handlers.kata]\nsnapshotter = 'x'":           `unknown key "handlers.kata.snapshotter"`,
		"[no_such_table]\na = 1":                       "no_such_table",
		"manifest_pull_timeout = ''":                   "manifest_pull_timeout",
		"manifest_pull_timeout = 'soon'":               "manifest_pull_timeout",
		"manifest_pull_timeout = 60":                   "manifest_pull_timeout",
		"manifest_pull_timeout = '29s'":                "manifest_pull_timeout: 29s is less than 30s",
		"manifest_pull_timeout = '-1m'":                "manifest_pull_timeout",
		"pull_timeout = ''":                            "pull_timeout",
		"pull_timeout = '-1h'":                         "pull_timeout",
		"pull_timeout = '1m'":                          "pull_timeout: 1m0s is not more than manifest_pull_timeout (1m0s)",
		"max_download_rate = 'fast'":                   `max_download_rate: "fast" is not a size`,
		"max_download_rate = '-1'":                     "max_download_rate",
		"max_download_rate = 5":                        "max_download_rate",
		"pull_timeout = 600":                           "pull_timeout",
		"max_concurrent_unpacks = 0":                   "max_concurrent_unpacks: 0 is less than 1",
		"max_concurrent_unpacks = '4'":                 "max_concurrent_unpacks",
		"max_concurrent_unpacks = 1.5":                 "max_concurrent_unpacks",
		"handlers = 'kata'":                            "handlers",
		"pull_behavior = 'sometimes'":                  "sometimes",
		"version_consistency = 'cluster'":              "cluster",
		"lookup_interval = '10ms'":                     "lookup_interval: 10ms is less than 1s",
		"lookup_interval = '-6h'":                      "lookup_interval: -6h0m0s is less than 1s",
		"lookup_interval = '6'":                        "lookup_interval",
		"pin_ttl = '1h'":                               "pin_ttl: 1h0m0s is less than 24h0m0s",
		"pin_ttl = 'soon'":                             "pin_ttl",
		"max_pins_per_namespace = -1":                  "max_pins_per_namespace",
		"max_retained_bytes = -1":                      "max_retained_bytes",
		"workload_labels = 'a'":                        "workload_labels",
		"retain = 'yes'":                               "retain",
		"[[rules]]\npull_behavior = 'once'":            "rules[1].match",
		"[[rules]]\nmatch = ['**']\nbehaviour = 'x'":   `unknown key "rules.behaviour"`,
		"[[rules]]\nmatch = ['**']\npull_behavior='x'": `"x"`,
		"locked = 'yes'":                               `locked "yes": must be one of "off", "warn", "strict"`,
		"locked = true":                                "locked",
		"[[rules]]\nmatch = ['**']\nlocked = 'Strict'": `rules[1].locked "Strict": must be one of`,
		"verify = 'always'":                            `verify "always": must be one of "pull", "run"`,
		"[[rules]]\nmatch = ['**']\nverify = true":     "verify",
		"[handlers.kata]\nguest_pull = 'yes'":          "guest_pull",
		"locks_directory = 'locks.d'":                  `locks_directory: "locks.d" is not an absolute path`,
		"bundles_directory = './bundles'":              `bundles_directory: "./bundles" is not an absolute path`,
		"lock_directory = '/locks'":                    `unknown key "lock_directory" (did you mean "locks_directory"?)`,
	} {
		_, err := parse(t, text).Check()
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: got %v, want an InvalidArgument error", text, err)
			continue
		}
		if !strings.Contains(err.Error(), `[plugins."`+Section+`"]`) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v\nwant %q", text, err, want)
		}
	}
}

// TestLocks checks the keys of locks: a rule inherits locked from the section, and an empty path turns a directory off.
func TestLocks(t *testing.T) {
	defaults, err := parse(t, "").Check()
	if err != nil || defaults.LocksDirectory != defaultLocksDirectory || defaults.BundlesDirectory != defaultBundlesDirectory {
		t.Errorf("default directories: got %q and %q, %v", defaults.LocksDirectory, defaults.BundlesDirectory, err)
	}
	s, err := parse(t, `
locked = "warn"
locks_directory = ""
bundles_directory = "/mnt/bundles"
[[rules]]
match = ["registry.example.com/**"]
locked = "strict"
[[rules]]
match = ["docker.io/**"]
retain = true
`).Check()
	if err != nil {
		t.Fatal(err)
	}
	if s.LocksDirectory != "" || s.BundlesDirectory != "/mnt/bundles" {
		t.Errorf("directories: got %q and %q", s.LocksDirectory, s.BundlesDirectory)
	}
	for ref, want := range map[string]policy.Locked{
		"registry.example.com/a:1": policy.LockedStrict, "docker.io/library/a:1": policy.LockedWarn, "quay.io/a:1": policy.LockedWarn,
	} {
		if got := s.Policy.Rule(ref).Locked; got != want {
			t.Errorf("%s: got locked %q, want %q", ref, got, want)
		}
	}
}

// TestExampleHasEveryKey checks that contrib/config/imagepin.toml has every key, with its default.
func TestExampleHasEveryKey(t *testing.T) {
	b, err := os.ReadFile("../../../contrib/config/imagepin.toml")
	if err != nil {
		t.Fatal(err)
	}
	var example struct {
		Plugins map[string]map[string]any `toml:"plugins"`
	}
	if err := toml.Unmarshal(b, &example); err != nil {
		t.Fatal(err)
	}
	defaults, err := DefaultTable()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := example.Plugins[Section], map[string]any(*defaults); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%v\nwant\n%v", got, want)
	}
}
