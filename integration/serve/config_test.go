package serve

import (
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/integration/node"
)

const imagesSection = "io.containerd.cri.v1.images"

// TestConfigMismatch checks that imagepin serve exits if its configuration does not match the running containerd. The
// error names the key and, if containerd has one, both values.
func TestConfigMismatch(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}}})
	r.must(r.StartContainerd())
	images := func(keys string) string {
		return "[plugins.\"" + imagesSection + "\"]\npinned_images.sandbox = \"pause\"\n" + keys
	}
	for name, test := range map[string]struct{ text, want string }{
		"snapshotter":                          {images(`snapshotter = "native"`), `snapshotter: it is "native" here, but "overlayfs" in the running containerd`},
		"layers":                               {images(`discard_unpacked_layers = false`), `discard_unpacked_layers: it is false here, but true in the running containerd`},
		"path":                                 {images(`registry.config_path = "/elsewhere"`), `registry.config_path: it is "/elsewhere" here, but "` + r.Path("certs.d") + `" in the running containerd`},
		"platform":                             {images(`runtime_platforms.kata.platform = "linux/arm64"`), `runtime_platforms.kata: unknown runtime handler`},
		"isolation":                            {images("") + ownSection + `handlers.kata.isolation = "process"`, `handlers.kata: unknown runtime handler`},
		"no sandbox":                           {"", `pinned_images.sandbox: is required: handlers use the snapshotters native and overlayfs`},
		"unknown key":                          {ownSection + "retian = true", `unknown key "retian" (did you mean "retain"?)`},
		"section that is read from containerd": {"[plugins.\"io.containerd.cri.v1.runtime\"]\n", `it is read from the running containerd`},
	} {
		t.Run(name, func(t *testing.T) {
			file := r.write(strings.ReplaceAll(name, " ", "-")+".toml", "address = "+quoted(r.Path("x.sock"))+
				"\nstate = "+quoted(r.Path("imagepin"))+"\ncontainerd_address = "+quoted(r.ContainerdAddress())+"\n"+test.text)
			out, err := r.imagepin("serve", "--config", file)
			if err == nil || !strings.Contains(out, test.want) {
				t.Errorf("got %v\n%s\nwant an error with %s", err, out, test.want)
			}
		})
	}
}

// TestDefaultsMatchContainerd checks that keys that a running containerd does not report have containerd's defaults,
// and that imagepin serve accepts the whole section of containerd.
func TestDefaultsMatchContainerd(t *testing.T) {
	t.Parallel()
	run := func(name string, args ...string) []byte {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), filepath.Join(node.BinDir(), name), args...).Output()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return out
	}
	sections := func(text []byte) map[string]map[string]any {
		t.Helper()
		var c struct {
			Plugins map[string]map[string]any `toml:"plugins"`
		}
		if err := toml.Unmarshal(text, &c); err != nil {
			t.Fatal(err)
		}
		return c.Plugins
	}
	theirs, ours := sections(run(node.Stock, "config", "default")), sections(run("imagepin", "config", "default", "--serve"))
	for _, section := range []string{imagesSection, "io.containerd.image-verifier.v1.bindir"} {
		if len(ours[section]) == 0 || len(theirs[section]) == 0 {
			t.Fatalf("section %s is empty: %v, %v", section, ours[section], theirs[section])
		}
		for key, value := range ours[section] {
			// Not compared: the sandbox image, which has no default here, and tables that are empty by default.
			if key != "pinned_images" && key != "registry" && key != "runtime_platforms" && !reflect.DeepEqual(value, theirs[section][key]) {
				t.Errorf("%s %s: got default %v, want %v as in containerd", section, key, value, theirs[section][key])
			}
		}
	}
	dump, err := toml.Marshal(map[string]any{"plugins": map[string]any{imagesSection: theirs[imagesSection]}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, node.Options{NoPods: true})
	if out, err := r.imagepin("config", "check", "--serve", r.write("dump.toml", string(dump))); err != nil {
		t.Errorf("containerd's own section is rejected: %s", out)
	}
}
