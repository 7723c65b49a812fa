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

// TestContradictions starts imagepin serve with configurations that do not fit the running containerd: it exits and names what is wrong, on
// both sides where there are two.
func TestContradictions(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{NoPods: true, DiscardUnpackedLayers: true, Handlers: []node.Handler{{Name: "second", Snapshotter: "native"}}})
	r.must(r.StartContainerd())
	images := func(keys string) string {
		return "[plugins.\"" + imagesSection + "\"]\npinned_images.sandbox = \"pause\"\n" + keys
	}
	for name, x := range map[string]struct{ text, says string }{
		"snapshotter":  {images(`snapshotter = "native"`), `snapshotter: it is "native" here, but "overlayfs" in the running containerd`},
		"layers":       {images(`discard_unpacked_layers = false`), `discard_unpacked_layers: it is false here, but true in the running containerd`},
		"path":         {images(`registry.config_path = "/elsewhere"`), `registry.config_path: it is "/elsewhere" here, but "` + r.Path("certs.d") + `" in the running containerd`},
		"platform":     {images(`runtime_platforms.kata.platform = "linux/arm64"`), `runtime_platforms.kata: unknown runtime handler`},
		"isolation":    {images("") + ownSection + `handlers.kata.isolation = "process"`, `handlers.kata: unknown runtime handler`},
		"no sandbox":   {"", `pinned_images.sandbox: is required: handlers use the snapshotters native and overlayfs`},
		"unknown key":  {ownSection + "retian = true", `unknown key "retian" (did you mean "retain"?)`},
		"what is read": {"[plugins.\"io.containerd.cri.v1.runtime\"]\n", `it is read from the running containerd`},
	} {
		t.Run(name, func(t *testing.T) {
			file := r.write(strings.ReplaceAll(name, " ", "-")+".toml", "address = "+quoted(r.Path("x.sock"))+
				"\nstate = "+quoted(r.Path("imagepin"))+"\ncontainerd_address = "+quoted(r.ContainerdAddress())+"\n"+x.text)
			out, err := r.imagepin("serve", "--config", file)
			if err == nil || !strings.Contains(out, x.says) {
				t.Errorf("%v\n%s\ndoes not say %s", err, out, x.says)
			}
		})
	}
}

// TestDefaultsAreContainerds compares the defaults of what cannot be read from a running containerd with those of containerd, and has all
// of containerd's section be accepted as it stands in `containerd config dump`.
func TestDefaultsAreContainerds(t *testing.T) {
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
			// Of the sandbox image, and of registries, the default is said elsewhere.
			if key != "pinned_images" && key != "registry" && key != "runtime_platforms" && !reflect.DeepEqual(value, theirs[section][key]) {
				t.Errorf("%s %s is %v, and %v in containerd", section, key, value, theirs[section][key])
			}
		}
	}
	dump, err := toml.Marshal(map[string]any{"plugins": map[string]any{imagesSection: theirs[imagesSection]}})
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, node.Options{NoPods: true})
	if out, err := r.imagepin("config", "check", "--serve", r.write("dump.toml", string(dump))); err != nil {
		t.Errorf("containerd's own section is refused: %s", out)
	}
}
