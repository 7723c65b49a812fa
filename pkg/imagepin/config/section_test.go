package config

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"

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
	if again, err := parse(t, string(b)).Check(); err != nil || again.ManifestPullTimeout != time.Minute || again.MaxConcurrentUnpacks != 4 {
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
	good, err := parse(t, "manifest_pull_timeout = '90s'\nmax_concurrent_unpacks = 1\n[handlers.win]\nisolation = 'hypervisor'").Check()
	if err != nil {
		t.Fatal(err)
	}
	if good.ManifestPullTimeout != 90*time.Second || good.MaxConcurrentUnpacks != 1 || good.Isolation["win"] != runtimeplatform.IsolationHypervisor {
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
		"max_concurrent_unpacks = 0":                   "max_concurrent_unpacks: 0 is less than 1",
		"max_concurrent_unpacks = '4'":                 "max_concurrent_unpacks",
		"max_concurrent_unpacks = 1.5":                 "max_concurrent_unpacks",
		"handlers = 'kata'":                            "handlers",
		"pull_behavior = 'sometimes'":                  "sometimes",
		"version_consistency = 'cluster'":              "cluster",
		"pin_ttl = '1h'":                               "pin_ttl: 1h0m0s is less than 24h0m0s",
		"pin_ttl = 'soon'":                             "pin_ttl",
		"max_pins_per_namespace = -1":                  "max_pins_per_namespace",
		"max_retained_bytes = -1":                      "max_retained_bytes",
		"workload_labels = 'a'":                        "workload_labels",
		"retain = 'yes'":                               "retain",
		"[[rules]]\npull_behavior = 'once'":            "rules[1].match",
		"[[rules]]\nmatch = ['**']\nbehaviour = 'x'":   `unknown key "rules.behaviour"`,
		"[[rules]]\nmatch = ['**']\npull_behavior='x'": `"x"`,
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
