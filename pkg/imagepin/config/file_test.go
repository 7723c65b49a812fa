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
		t.Errorf("the defaults, read again: %+v\nnot %+v", again, empty)
	}
}

func TestWrongFile(t *testing.T) {
	images := "[plugins.'" + ImagesSection + "']\n"
	for text, says := range map[string]string{
		"adress = '/a'":                      "adress: no such key",
		"[metrics]\nadress = ':1'":           "metrics.adress: no such key",
		"version = 2":                        "version: it is 2",
		"address = 'tcp://0.0.0.0:1'":        "address: ",
		"state = 'here'":                     "state: ",
		"containerd_address = 'x'":           "containerd_address: ",
		"[debug]\naddress = '127.0.0.1:1'":   "debug.address: ",
		"log_level = 'loud'":                 "log_level: ",
		"address = 1":                        "address",
		"= 1":                                "",
		"[plugins.other]":                    `[plugins."other"]: there is no such section`,
		"[plugins.'" + RuntimeSection + "']": "running containerd",
		"[plugins.'" + Section + "']\npull_behaviour = 'x'": `[plugins."` + Section + `"] pull_behaviour: no such key`,
		images + "snapshoter = 'x'":                         `[plugins."` + ImagesSection + `"] snapshoter: no such key`,
		images + "registry.config_paht = 'x'":               "registry.config_paht: no such key",
		images + "max_concurrent_downloads = 'x'":           "max_concurrent_downloads",
		images + "image_pull_progress_timeout = 'x'":        "image_pull_progress_timeout",
		"[plugins.'" + VerifierSection + "']\nbindir = 'x'": `[plugins."` + VerifierSection + `"] bindir: no such key`,
	} {
		_, err := ParseFile([]byte(text))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v\ndoes not say %q", text, err, says)
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

func TestInheritFromTheRunning(t *testing.T) {
	yes, path := true, "/elsewhere"
	told := ReportedConfig{Runtime: runtimes(), Snapshotter: "native", DiscardUnpackedLayers: &yes, ConfigPath: &path}
	untold := ReportedConfig{Runtime: runtimes()}
	sectioned := func(keys string) string { return "[plugins.'" + ImagesSection + "']\n" + keys }
	for name, x := range map[string]struct {
		file    string
		running ReportedConfig
		want    string // snapshotter, discard, path; or what the error says
	}{
		"nothing is said":        {"", untold, "overlayfs false " + defaultConfigPath},
		"mirrors, no path":       {sectioned("registry.mirrors.'docker.io'.endpoint = ['https://m']"), untold, "overlayfs false "},
		"the file says":          {sectioned("snapshotter = 'erofs'\ndiscard_unpacked_layers = true\nregistry.config_path = '/p'"), untold, "erofs true /p"},
		"containerd says":        {"", told, "native true /elsewhere"},
		"they agree":             {sectioned("snapshotter = 'native'\ndiscard_unpacked_layers = true\nregistry.config_path = '/elsewhere'"), told, "native true /elsewhere"},
		"another snapshotter":    {sectioned("snapshotter = 'overlayfs'"), told, `snapshotter: it is "overlayfs" here, but "native" in the running containerd`},
		"layers are discarded":   {sectioned("discard_unpacked_layers = false"), told, `discard_unpacked_layers: it is false here, but true in the running containerd`},
		"another path":           {sectioned("registry.config_path = '/p'"), told, `registry.config_path: it is "/p" here, but "/elsewhere" in the running containerd`},
		"unknown sandbox image":  {"", ReportedConfig{Runtime: runtimes("native")}, "pinned_images.sandbox: is missing: handlers are on the snapshotters native and overlayfs"},
		"known sandbox image":    {sectioned("pinned_images.sandbox = 'pause'"), ReportedConfig{Runtime: runtimes("native")}, "overlayfs false " + defaultConfigPath},
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
