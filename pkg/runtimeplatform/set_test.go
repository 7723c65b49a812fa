package runtimeplatform_test

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// host returns a node of a platform with the matcher that containerd uses by default on such a node.
func host(t testing.TB, platform string) runtimeplatform.Host {
	t.Helper()
	spec, err := platforms.Parse(platform)
	if err != nil {
		t.Fatal(err)
	}
	if spec.OS == "windows" {
		return runtimeplatform.Host{Spec: spec, Matcher: windowsDefault{platforms.NewMatcher(spec)}}
	}
	return runtimeplatform.Host{Spec: spec, Matcher: platforms.Only(spec)}
}

// windowsDefault is the matcher of platforms.Default on Windows. It matches the exact architecture and compares
// os.version as text.
type windowsDefault struct{ platforms.Matcher }

func (m windowsDefault) Less(a, b ocispec.Platform) bool {
	matchA, matchB := m.Match(a), m.Match(b)
	if matchA && matchB {
		return a.OSVersion > b.OSVersion
	}
	return matchA && !matchB
}

func newSet(t testing.TB, platform string, handlers ...runtimeplatform.Handler) *runtimeplatform.Set {
	t.Helper()
	set, err := runtimeplatform.New(handlers[0].Name, handlers, host(t, platform))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func node(t testing.TB) *runtimeplatform.Set {
	return newSet(t, "linux/amd64",
		runtimeplatform.Handler{Name: "runc", Snapshotter: "overlayfs"},
		runtimeplatform.Handler{Name: "kata", Snapshotter: "devmapper"},
		runtimeplatform.Handler{Name: "kata-arm", Platform: "linux/arm64", Snapshotter: "devmapper"},
		runtimeplatform.Handler{Name: "arm", Platform: "linux/aarch64/v8", Snapshotter: "native"},
		runtimeplatform.Handler{Name: "a-runc", Platform: "linux/x86_64", Snapshotter: "overlayfs"},
	)
}

func TestLookup(t *testing.T) {
	set := node(t)
	for _, tc := range []struct {
		handler, name, target string
		native                bool
	}{
		{"", "runc", "linux/amd64 on overlayfs", true},
		{"runc", "runc", "linux/amd64 on overlayfs", true},
		{"a-runc", "a-runc", "linux/amd64 on overlayfs", true},
		{"kata", "kata", "linux/amd64 on devmapper", true},
		{"kata-arm", "kata-arm", "linux/arm64 on devmapper", false},
		{"arm", "arm", "linux/arm64 on native", false},
	} {
		t.Run(tc.handler, func(t *testing.T) {
			rt, err := set.Lookup(tc.handler)
			if err != nil {
				t.Fatal(err)
			}
			if rt.Handler != tc.name || rt.Target.String() != tc.target || rt.Native != tc.native {
				t.Errorf("got %s: %s, native %t; want %s: %s, native %t", rt.Handler, rt.Target, rt.Native, tc.name, tc.target, tc.native)
			}
			if got := platforms.FormatAll(rt.Spec); got != rt.Target.Platform {
				t.Errorf("got Spec %s, want the platform of the target, %s", got, rt.Target.Platform)
			}
			if !rt.Matcher.Match(rt.Spec) {
				t.Errorf("the matcher does not match the platform of its target, %s", rt.Target.Platform)
			}
		})
	}
}

func TestLookupUnknown(t *testing.T) {
	_, err := node(t).Lookup("gvisor")

	var unknown *runtimeplatform.UnknownHandlerError
	if !errors.As(err, &unknown) || !errdefs.IsInvalidArgument(err) {
		t.Fatalf("got %v, want an UnknownHandlerError that is an invalid argument", err)
	}
	if want := []string{"a-runc", "arm", "kata", "kata-arm", "runc"}; unknown.Handler != "gvisor" || !slices.Equal(unknown.Known, want) {
		t.Errorf("got %q, known %q; want gvisor, known %q", unknown.Handler, unknown.Known, want)
	}
	if want := `unknown runtime handler "gvisor": this node has "a-runc", "arm", "kata", "kata-arm", "runc"`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestTargets(t *testing.T) {
	set := node(t)

	targets := set.Targets()
	want := []runtimeplatform.Target{
		{Platform: "linux/amd64", Snapshotter: "overlayfs"},
		{Platform: "linux/amd64", Snapshotter: "devmapper"},
		{Platform: "linux/amd64", Snapshotter: "native"}, // only for sandboxes
		{Platform: "linux/arm64", Snapshotter: "devmapper"},
		{Platform: "linux/arm64", Snapshotter: "native"},
	}
	if !slices.Equal(targets, want) {
		t.Fatalf("targets: got %v, want %v", targets, want)
	}
	if got, want := set.Snapshotters(), []string{"overlayfs", "devmapper", "native"}; !slices.Equal(got, want) {
		t.Errorf("snapshotters: got %q, want %q", got, want)
	}

	for target, want := range map[runtimeplatform.Target]struct {
		handlers []string
		runtime  string
	}{
		targets[0]:              {[]string{"a-runc", "runc"}, "runc"},
		targets[1]:              {[]string{"kata"}, "kata"},
		targets[2]:              {nil, "arm"},
		targets[3]:              {[]string{"kata-arm"}, "kata-arm"},
		targets[4]:              {[]string{"arm"}, "arm"},
		{Platform: "linux/386"}: {nil, ""},
	} {
		if got := set.Handlers(target); !slices.Equal(got, want.handlers) {
			t.Errorf("handlers of %s: got %q, want %q", target, got, want.handlers)
		}
		rt, ok := set.ForTarget(target)
		if ok != (want.runtime != "") || rt.Handler != want.runtime {
			t.Errorf("runtime of %s: got %q, %t; want %q", target, rt.Handler, ok, want.runtime)
		}
	}
}

func TestSetIsImmutable(t *testing.T) {
	handlers := []runtimeplatform.Handler{
		{Name: "runc", Platform: "linux(+a+b)/amd64", Snapshotter: "overlayfs"},
		{Name: "kata", Snapshotter: "native"},
	}
	set := newSet(t, "linux/amd64", handlers...)
	target := set.Default().Target

	handlers[0].Name = "x"
	set.Default().Spec.OSFeatures[0] = "x"
	set.Targets()[0].Platform = "x"
	set.Snapshotters()[0] = "x"
	set.Handlers(target)[0] = "x"

	fresh := newSet(t, "linux/amd64",
		runtimeplatform.Handler{Name: "runc", Platform: "linux(+a+b)/amd64", Snapshotter: "overlayfs"},
		runtimeplatform.Handler{Name: "kata", Snapshotter: "native"},
	)
	if !reflect.DeepEqual(set, fresh) {
		t.Errorf("a returned value changed the set: got %+v, want %+v", set, fresh)
	}
}

func TestZeroHost(t *testing.T) {
	set, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "overlayfs"}}, runtimeplatform.Host{})
	if err != nil {
		t.Fatal(err)
	}
	rt := set.Default()
	if want := platforms.DefaultSpec(); !rt.Native || !platforms.OnlyStrict(want).Match(rt.Spec) || !rt.Matcher.Match(want) {
		t.Errorf("got %+v, want the platform of this machine, %s", rt, platforms.FormatAll(want))
	}
}

func TestConfigErrors(t *testing.T) {
	runc := runtimeplatform.Handler{Name: "runc", Snapshotter: "overlayfs"}
	for _, tc := range []struct {
		name           string
		defaultHandler string
		handler        runtimeplatform.Handler
		key, value     string
		text           string
	}{
		{
			name:    "too many components",
			handler: runtimeplatform.Handler{Name: "h", Platform: "linux/arm64/v8/x", Snapshotter: "native"},
			key:     "platform", value: "linux/arm64/v8/x", text: `runtime handler "h": platform "linux/arm64/v8/x": `,
		},
		{
			name:    "wildcard",
			handler: runtimeplatform.Handler{Name: "h", Platform: "linux/*", Snapshotter: "native"},
			key:     "platform", value: "linux/*", text: "wildcard",
		},
		{
			name:    "blank",
			handler: runtimeplatform.Handler{Name: "h", Platform: " ", Snapshotter: "native"},
			key:     "platform", value: " ",
		},
		{
			name:    "unknown os or architecture",
			handler: runtimeplatform.Handler{Name: "h", Platform: "amd46", Snapshotter: "native"},
			key:     "platform", value: "amd46", text: "unknown operating system or architecture",
		},
		{
			name:    "same text as another platform",
			handler: runtimeplatform.Handler{Name: "h", Platform: "linux/arm64/..", Snapshotter: "native"},
			key:     "platform", value: "linux/arm64/..", text: "canonical form",
		},
		{
			name:    "text without a component",
			handler: runtimeplatform.Handler{Name: "h", Platform: "linux/./arm64", Snapshotter: "native"},
			key:     "platform", value: "linux/./arm64", text: "canonical form",
		},
		{
			name:    "Windows release name",
			handler: runtimeplatform.Handler{Name: "h", Platform: "windows(ltsc2019)/amd64", Snapshotter: "windows"},
			key:     "platform", value: "windows(ltsc2019)/amd64", text: "major.minor.build",
		},
		{
			name:    "Windows without build",
			handler: runtimeplatform.Handler{Name: "h", Platform: "windows(10.0)/amd64", Snapshotter: "windows", Isolation: runtimeplatform.IsolationHypervisor},
			key:     "platform", value: "windows(10.0)/amd64", text: "major.minor.build",
		},
		{
			name:    "no snapshotter",
			handler: runtimeplatform.Handler{Name: "h"},
			key:     "snapshotter", value: "",
		},
		{
			name:    "unknown isolation",
			handler: runtimeplatform.Handler{Name: "h", Platform: "windows/amd64", Snapshotter: "windows", Isolation: "hyperv"},
			key:     "isolation", value: "hyperv", text: `must be "process" or "hypervisor"`,
		},
		{
			name:    "hypervisor isolation for Linux",
			handler: runtimeplatform.Handler{Name: "h", Platform: "linux/arm64", Snapshotter: "native", Isolation: runtimeplatform.IsolationHypervisor},
			key:     "isolation", value: "hypervisor", text: "not linux/arm64",
		},
		{
			name:    "hypervisor isolation on a Linux node",
			handler: runtimeplatform.Handler{Name: "h", Snapshotter: "native", Isolation: runtimeplatform.IsolationHypervisor},
			key:     "isolation", value: "hypervisor", text: "not linux/amd64",
		},
		{
			name:    "no name",
			handler: runtimeplatform.Handler{Snapshotter: "native"},
			key:     "name", value: "",
		},
		{
			name:    "duplicate name",
			handler: runc,
			key:     "name", value: "runc",
		},
		{
			name:           "missing default",
			defaultHandler: "crun",
			handler:        runtimeplatform.Handler{Name: "h", Snapshotter: "native"},
			key:            "default_runtime_name", value: "crun", text: `default_runtime_name "crun": unknown runtime handler: this node has "h", "runc"`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			defaultHandler := "runc"
			if tc.defaultHandler != "" {
				defaultHandler = tc.defaultHandler
			}
			set, err := runtimeplatform.New(defaultHandler, []runtimeplatform.Handler{runc, tc.handler}, host(t, "linux/amd64"))

			var config *runtimeplatform.ConfigError
			if set != nil || !errors.As(err, &config) || !errdefs.IsInvalidArgument(err) {
				t.Fatalf("got %v, %v; want a ConfigError that is an invalid argument", set, err)
			}
			name := tc.handler.Name
			if tc.defaultHandler != "" {
				name = tc.defaultHandler
			}
			if config.Handler != name || config.Key != tc.key || config.Value != tc.value {
				t.Errorf("got key %q of handler %q = %q, want key %q of handler %q = %q", config.Key, config.Handler, config.Value, tc.key, name, tc.value)
			}
			if config.Err == nil || !errors.Is(err, config.Err) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got error %q with cause %v, want an error that contains %q", err, config.Err, tc.text)
			}
		})
	}

	t.Run("no handlers", func(t *testing.T) {
		_, err := runtimeplatform.New("", nil, host(t, "linux/amd64"))
		if want := `default_runtime_name "": unknown runtime handler: this node has none`; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	})
}

func TestSandbox(t *testing.T) {
	set := node(t)
	want := runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "native"}

	rt, err := set.Sandbox("arm")
	if err != nil {
		t.Fatal(err)
	}
	if rt.Target != want || !rt.Native {
		t.Errorf("got %s (native %t), want %s, native", rt.Target, rt.Native, want)
	}
	if again, ok := set.ForTarget(want); !ok || again.Target != want {
		t.Errorf("ForTarget of a sandbox: got %v, %t, want %s", again, ok, want)
	}
	if handlers := set.Handlers(want); len(handlers) != 0 {
		t.Errorf("handlers of a sandbox's target: got %q, want none", handlers)
	}
	if _, err := set.Sandbox("gvisor"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown handler: got %v, want an InvalidArgument error", err)
	}
}
