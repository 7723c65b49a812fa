package config

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

func TestDefaultFile(t *testing.T) {
	f, err := DefaultFile()
	if err != nil {
		t.Fatal(err)
	}
	b, err := toml.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseFile(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	empty, err := ParseFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	if again.Address != empty.Address || again.Verifier != empty.Verifier || again.images.MaxConcurrentDownloads != 3 ||
		again.Settings.ManifestPullTimeout != empty.Settings.ManifestPullTimeout || again.images.ImagePullProgressTimeout != empty.images.ImagePullProgressTimeout {
		t.Errorf("the parsed defaults are %+v\nwant %+v", again, empty)
	}
}

func TestInvalidFile(t *testing.T) {
	images := "[plugins.'" + ImagesSection + "']\n"
	for text, want := range map[string]string{
		"adress = '/a'":                      `unknown key "adress" (did you mean "address"?)`,
		"[metrics]\nadress = ':1'":           `unknown key "metrics.adress" (did you mean "metrics.address"?)`,
		"version = 2":                        "version: 2 is not supported",
		"address = 'tcp://0.0.0.0:1'":        "address: ",
		"state = 'here'":                     "state: ",
		"containerd_address = 'x'":           "containerd_address: ",
		"[debug]\naddress = '127.0.0.1:1'":   "debug.address: ",
		"log_level = 'loud'":                 "log_level: ",
		"address = 1":                        "address",
		"= 1":                                "",
		"[plugins.other]":                    `[plugins."other"]: unknown section`,
		"[plugins.'" + runtimeSection + "']": "running containerd",
		"[plugins.'" + Section + "']\npull_behaviour = 'x'": `[plugins."` + Section + `"]: unknown key "pull_behaviour" (did you mean "pull_behavior"?)`,
		images + "snapshoter = 'x'":                         `[plugins."` + ImagesSection + `"]: unknown key "snapshoter" (did you mean "snapshotter"?)`,
		images + "registry.config_paht = 'x'":               `unknown key "registry.config_paht" (did you mean "registry.config_path"?)`,
		images + "max_concurrent_downloads = 'x'":           "max_concurrent_downloads",
		images + "image_pull_progress_timeout = 'x'":        "image_pull_progress_timeout",
		"[plugins.'" + VerifierSection + "']\nbindir = 'x'": `[plugins."` + VerifierSection + `"]: unknown key "bindir" (did you mean "bin_dir"?)`,
	} {
		_, err := ParseFile([]byte(text))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v\nwant %q", text, err, want)
		}
	}
}

func runtimes(snapshotters ...string) Runtime {
	var r Runtime
	r.Containerd.DefaultRuntimeName = "runc"
	r.Containerd.Runtimes = map[string]Handler{"runc": {}}
	for _, s := range snapshotters {
		r.Containerd.Runtimes[s] = Handler{Snapshotter: s}
	}
	return r
}

func TestInheritFromRunningContainerd(t *testing.T) {
	yes, path := true, "/elsewhere"
	reported := ReportedConfig{Runtime: runtimes(), Snapshotter: "native", DiscardUnpackedLayers: &yes, ConfigPath: &path}
	unreported := ReportedConfig{Runtime: runtimes()}
	inImages := func(keys string) string { return "[plugins.'" + ImagesSection + "']\n" + keys }
	for name, x := range map[string]struct {
		file    string
		running ReportedConfig
		want    string // snapshotter, discard, path; or the text of the error
	}{
		"defaults":               {"", unreported, "overlayfs false " + defaultConfigPath},
		"mirrors, no path":       {inImages("registry.mirrors.'docker.io'.endpoint = ['https://m']"), unreported, "overlayfs false "},
		"set in the file":        {inImages("snapshotter = 'erofs'\ndiscard_unpacked_layers = true\nregistry.config_path = '/p'"), unreported, "erofs true /p"},
		"reported by containerd": {"", reported, "native true /elsewhere"},
		"same values":            {inImages("snapshotter = 'native'\ndiscard_unpacked_layers = true\nregistry.config_path = '/elsewhere'"), reported, "native true /elsewhere"},
		"another snapshotter":    {inImages("snapshotter = 'overlayfs'"), reported, `snapshotter: it is "overlayfs" here, but "native" in the running containerd`},
		"another discard":        {inImages("discard_unpacked_layers = false"), reported, `discard_unpacked_layers: it is false here, but true in the running containerd`},
		"another path":           {inImages("registry.config_path = '/p'"), reported, `registry.config_path: it is "/p" here, but "/elsewhere" in the running containerd`},
		"unknown sandbox image":  {"", ReportedConfig{Runtime: runtimes("native")}, "pinned_images.sandbox: is required: handlers use the snapshotters native and overlayfs"},
		"known sandbox image":    {inImages("pinned_images.sandbox = 'pause'"), ReportedConfig{Runtime: runtimes("native")}, "overlayfs false " + defaultConfigPath},
		"one snapshotter in use": {"", ReportedConfig{Runtime: runtimes("native"), Snapshotter: "native"}, "native false " + defaultConfigPath},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := ParseFile([]byte(x.file))
			if err != nil {
				t.Fatal(err)
			}
			c, err := b.Inherit(x.running)
			if err != nil {
				if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), x.want) {
					t.Errorf("got %v\nwant %s", err, x.want)
				}
				return
			}
			discard := "false"
			if c.Images.DiscardUnpackedLayers {
				discard = "true"
			}
			if got := c.Images.Snapshotter + " " + discard + " " + c.Images.Registry.ConfigPath; got != x.want {
				t.Errorf("got %s\nwant %s", got, x.want)
			}
		})
	}
}
