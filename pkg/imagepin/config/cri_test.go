package config

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// imageConfig and runtimeConfig have the fields of containerd's internal types (internal/cri/config/config.go),
// including the embedded structs. TestKeysExistInContainerd compares the keys with those of containerd.
type (
	imageConfig struct {
		Snapshotter                string                   `toml:"snapshotter"`
		DisableSnapshotAnnotations bool                     `toml:"disable_snapshot_annotations"`
		DiscardUnpackedLayers      bool                     `toml:"discard_unpacked_layers"`
		PinnedImages               map[string]string        `toml:"pinned_images"`
		RuntimePlatforms           map[string]imagePlatform `toml:"runtime_platforms"`
		Registry                   registryConfig           `toml:"registry"`
		ImageDecryption            `toml:"image_decryption"`
		MaxConcurrentDownloads     int    `toml:"max_concurrent_downloads"`
		ConcurrentLayerFetchBuffer int    `toml:"concurrent_layer_fetch_buffer"`
		ImagePullProgressTimeout   string `toml:"image_pull_progress_timeout"`
		ImagePullWithSyncFs        bool   `toml:"image_pull_with_sync_fs"`
		StatsCollectPeriod         int    `toml:"stats_collect_period"`
		UseLocalImagePull          bool   `toml:"use_local_image_pull"`
	}
	ImageDecryption struct {
		KeyModel string `toml:"key_model"`
	}
	imagePlatform struct {
		Platform    string `toml:"platform"`
		Snapshotter string `toml:"snapshotter"`
	}
	registryConfig struct {
		ConfigPath string                  `toml:"config_path"`
		Mirrors    map[string]mirrorConfig `toml:"mirrors"`
		Configs    map[string]hostConfig   `toml:"configs"`
		Auths      map[string]authConfig   `toml:"auths"`
		Headers    map[string][]string     `toml:"headers"`
	}
	mirrorConfig struct {
		Endpoints []string `toml:"endpoint"`
	}
	hostConfig struct {
		Auth *authConfig `toml:"auth"`
	}
	authConfig struct {
		Username      string `toml:"username"`
		Password      string `toml:"password"`
		Auth          string `toml:"auth"`
		IdentityToken string `toml:"identitytoken"`
	}
	runtimeConfig struct {
		ContainerdConfig `toml:"containerd"`
		EnableCRIU       *bool `toml:"enable_criu"`
	}
	ContainerdConfig struct {
		DefaultRuntimeName string                  `toml:"default_runtime_name"`
		Runtimes           map[string]runtimeEntry `toml:"runtimes"`
	}
	runtimeEntry struct {
		Type                  string         `toml:"runtime_type"`
		PodAnnotations        []string       `toml:"pod_annotations"`
		Options               map[string]any `toml:"options"`
		Snapshotter           string         `toml:"snapshotter"`
		DisablePauseImagePull bool           `toml:"disable_pause_image_pull"`
	}
)

func fullConfig() (imageConfig, runtimeConfig) {
	return imageConfig{
			Snapshotter: "overlayfs", DisableSnapshotAnnotations: true, DiscardUnpackedLayers: true,
			PinnedImages:     map[string]string{"sandbox": "registry.example/pause:3", "other": "busybox", "odd": "Not A Reference"},
			RuntimePlatforms: map[string]imagePlatform{"arm": {Platform: "linux/arm64", Snapshotter: "elsewhere"}},
			Registry: registryConfig{
				ConfigPath: "/etc/a:/etc/b",
				Mirrors:    map[string]mirrorConfig{"docker.io": {Endpoints: []string{"https://m1", "https://m2"}}},
				Configs: map[string]hostConfig{
					"h":     {Auth: &authConfig{Username: "u", Password: "p", Auth: "a", IdentityToken: "i"}},
					"plain": {},
				},
				Headers: map[string][]string{"X-A": {"1", "2"}},
			},
			ImageDecryption:        ImageDecryption{KeyModel: "node"},
			MaxConcurrentDownloads: 5, ConcurrentLayerFetchBuffer: 6, ImagePullProgressTimeout: "7m0s",
			ImagePullWithSyncFs: true, StatsCollectPeriod: 8,
		}, runtimeConfig{ContainerdConfig: ContainerdConfig{
			DefaultRuntimeName: "runc",
			Runtimes: map[string]runtimeEntry{
				"runc": {Type: "io.containerd.runc.v2", Options: map[string]any{"SystemdCgroup": true, "BinaryName": "runc", "N": int64(1)}},
				"arm":  {Type: "io.containerd.runc.v2", Snapshotter: "native", DisablePauseImagePull: true},
			},
		}}
}

// read converts containerd's types to a CRI.
func read(t *testing.T, images imageConfig, runtimes runtimeConfig) CRI {
	t.Helper()
	var c CRI
	for _, s := range []struct{ from, into any }{{images, &c.Images}, {runtimes, &c.Runtime}} {
		b, err := toml.Marshal(s.from)
		if err != nil {
			t.Fatal(err)
		}
		if err := toml.Unmarshal(b, s.into); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func TestCRI(t *testing.T) {
	images, runtimes := fullConfig()
	c := read(t, images, runtimes)
	got := c.Images
	if got.Snapshotter != "overlayfs" || !got.DisableSnapshotAnnotations || !got.DiscardUnpackedLayers ||
		got.RuntimePlatforms["arm"] != (Platform{"linux/arm64", "elsewhere"}) || got.ImageDecryption.KeyModel != "node" ||
		got.MaxConcurrentDownloads != 5 || got.ConcurrentLayerFetchBuffer != 6 || !got.ImagePullWithSyncFS || got.StatsCollectPeriod != 8 {
		t.Errorf("unexpected image configuration %+v", got)
	}
	if d, err := c.ProgressTimeout(); err != nil || d != 7*time.Minute {
		t.Errorf("progress timeout: got %s, %v, want 7m", d, err)
	}
	want := resolve.RegistryConfig{
		ConfigPath: []string{"/etc/a", "/etc/b"},
		Headers:    map[string][]string{"X-A": {"1", "2"}},
		Mirrors:    map[string][]string{"docker.io": {"https://m1", "https://m2"}},
		Auths:      map[string]resolve.Credential{"h": {Username: "u", Password: "p", Auth: "a", IdentityToken: "i"}},
	}
	if got := c.Registry(); !reflect.DeepEqual(got, want) {
		t.Errorf("registry: got %v, want %v", got, want)
	}
	if got := c.SandboxImage(); got != "registry.example/pause:3" {
		t.Errorf("sandbox image: got %q, want registry.example/pause:3", got)
	}
	if got := c.PinnedImages(); !slices.Equal(got, []string{"Not A Reference", "docker.io/library/busybox:latest", "registry.example/pause:3"}) {
		t.Errorf("unexpected pinned images %v", got)
	}
	if got := c.WithoutSandboxImage(); !got["arm"] || got["runc"] {
		t.Errorf("handlers without a sandbox image: got %v, want arm", got)
	}
	if h := c.Runtime.Containerd.Runtimes["runc"]; h.Type != "io.containerd.runc.v2" || h.Options["SystemdCgroup"] != true {
		t.Errorf("unexpected handler runc: %+v", h)
	}
}

func TestHandlers(t *testing.T) {
	all := func(string) bool { return true }
	images, runtimes := fullConfig()
	c := read(t, images, runtimes)
	set, err := c.Handlers(Settings{}, all)
	if err != nil {
		t.Fatal(err)
	}
	if rt := set.Default(); rt.Handler != "runc" || rt.Target.Snapshotter != "overlayfs" || !rt.Native {
		t.Errorf("unexpected default handler %+v", rt)
	}
	if rt, err := set.Lookup("arm"); err != nil || rt.Target.Snapshotter != "native" || rt.Native == (platforms.DefaultSpec().Architecture != "arm64") {
		t.Errorf("unexpected handler arm: %+v, %v", rt, err)
	}

	for name, x := range map[string]struct {
		change func(*CRI, *Settings)
		loaded func(string) bool
		want   string
	}{
		"default snapshotter not loaded": {func(*CRI, *Settings) {}, func(s string) bool { return s != "overlayfs" }, `"` + ImagesSection + `"] snapshotter: `},
		"handler snapshotter not loaded": {func(*CRI, *Settings) {}, func(s string) bool { return s != "native" }, `"` + runtimeSection + `"] containerd.runtimes.arm.snapshotter: `},
		"platform of unknown handler": {func(c *CRI, _ *Settings) {
			c.Images.RuntimePlatforms = map[string]Platform{"gone": {}}
		}, all, `"` + ImagesSection + `"] runtime_platforms.gone: `},
		"isolation of unknown handler": {func(_ *CRI, s *Settings) {
			s.Isolation = map[string]runtimeplatform.Isolation{"gone": ""}
		}, all, `"` + Section + `"] handlers.gone: `},
		"isolation on Linux": {func(_ *CRI, s *Settings) {
			s.Isolation = map[string]runtimeplatform.Isolation{"arm": "hypervisor"}
		}, all, `"` + Section + `"] handlers.arm.isolation: `},
		"unknown isolation": {func(_ *CRI, s *Settings) {
			s.Isolation = map[string]runtimeplatform.Isolation{"runc": "thorough"}
		}, all, `"` + Section + `"] handlers.runc.isolation: `},
		"invalid platform": {func(c *CRI, _ *Settings) {
			c.Images.RuntimePlatforms = map[string]Platform{"arm": {Platform: "?"}}
		}, all, `"` + ImagesSection + `"] runtime_platforms.arm.platform: `},
		"unknown default handler": {func(c *CRI, _ *Settings) { c.Runtime.Containerd.DefaultRuntimeName = "gone" }, all, `"` + runtimeSection + `"] containerd.default_runtime_name: `},
	} {
		t.Run(name, func(t *testing.T) {
			changed, own := c, Settings{}
			x.change(&changed, &own)
			_, err := changed.Handlers(own, x.loaded)
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), x.want) {
				t.Errorf("got %v\nwant %s", err, x.want)
			}
		})
	}
}

func TestUnsupportedKeys(t *testing.T) {
	images, runtimes := fullConfig()
	images.ImageDecryption.KeyModel = "cloud"
	warnings := strings.Join(read(t, images, runtimes).Unsupported(), "\n")
	for _, key := range []string{"runtime_platforms.arm.snapshotter", "image_decryption.key_model"} {
		if !strings.Contains(warnings, key) {
			t.Errorf("no warning about %s:\n%s", key, warnings)
		}
	}
	images, _ = fullConfig()
	images.RuntimePlatforms = map[string]imagePlatform{"arm": {Platform: "linux/arm64", Snapshotter: "native"}, "runc": {Snapshotter: "overlayfs"}}
	if warnings := read(t, images, runtimes).Unsupported(); len(warnings) > 0 {
		t.Errorf("unexpected warnings: %q", warnings)
	}
}

// TestKeysExistInContainerd checks that the built-in version of containerd has every key that imagepin reads.
func TestKeysExistInContainerd(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/containerd/containerd/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(out)), "internal", "cri", "config", "config.go")
	containerdKeys, err := keysIn(file)
	if err != nil {
		t.Fatal(err)
	}
	for typ, name := range map[reflect.Type]string{
		reflect.TypeFor[Images]():                 "ImageConfig",
		reflect.TypeFor[Platform]():               "ImagePlatform",
		reflect.TypeFor[Registry]():               "Registry",
		reflect.TypeFor[Auth]():                   "AuthConfig",
		reflect.TypeFor[Runtime]():                "RuntimeConfig",
		reflect.TypeFor[Handler]():                "Runtime",
		reflect.TypeOf(Images{}.ImageDecryption):  "ImageDecryption",
		reflect.TypeOf(Runtime{}.Containerd):      "ContainerdConfig",
		reflect.TypeOf(Registry{}.Mirrors).Elem(): "Mirror",
		reflect.TypeOf(Registry{}.Configs).Elem(): "RegistryConfig",
		reflect.TypeFor[imageConfig]():            "ImageConfig",
		reflect.TypeFor[registryConfig]():         "Registry",
	} {
		for i := range typ.NumField() {
			if key := typ.Field(i).Tag.Get("toml"); !containerdKeys[name][key] {
				t.Errorf("containerd's %s has no key %q", name, key)
			}
		}
	}
	transfer, err := keysIn(filepath.Join(strings.TrimSpace(string(out)), "plugins", "transfer", "plugin.go"))
	if err != nil {
		t.Fatal(err)
	}
	for typ, name := range map[reflect.Type]string{reflect.TypeFor[Transfer](): "transferConfig", reflect.TypeFor[Unpack](): "unpackConfiguration"} {
		keys := make(map[string]bool)
		for i := range typ.NumField() {
			keys[strings.TrimSuffix(typ.Field(i).Tag.Get("toml"), ",omitempty")] = true
		}
		want := make(map[string]bool)
		for key := range transfer[name] {
			want[strings.TrimSuffix(key, ",omitempty")] = true
		}
		if !reflect.DeepEqual(keys, want) {
			t.Errorf("containerd's %s has the keys %v, imagepin reads %v", name, want, keys)
		}
	}
	// imagepin reads every key of containerd's image configuration, except those listed here.
	notRead := map[string]bool{"use_local_image_pull": true} // imagepin pulls images itself
	for key := range containerdKeys["ImageConfig"] {
		_, read := reflect.TypeFor[Images]().FieldByNameFunc(func(f string) bool {
			field, _ := reflect.TypeFor[Images]().FieldByName(f)
			return field.Tag.Get("toml") == key
		})
		if !read && !notRead[key] {
			t.Errorf("containerd's image configuration has %s, which imagepin does not read", key)
		}
	}
}

// keysIn returns the TOML keys of the structs in a source file.
func keysIn(file string) (map[string]map[string]bool, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	all := make(map[string]map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		s, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		keys := make(map[string]bool)
		for _, field := range s.Fields.List {
			if field.Tag == nil {
				continue
			}
			tag, err := strconv.Unquote(field.Tag.Value)
			if err != nil {
				continue
			}
			if key := reflect.StructTag(tag).Get("toml"); key != "" {
				keys[key] = true
			}
		}
		all[spec.Name.Name] = keys
		return true
	})
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no structs", file)
	}
	return all, nil
}
