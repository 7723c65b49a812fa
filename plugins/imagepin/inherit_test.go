package imagepin

import (
	"testing"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
)

// imageConfig and runtimeConfig have the shape of containerd's structs in the plugin set, including the embedded ones.
type (
	imageConfig struct {
		Snapshotter     string            `toml:"snapshotter"`
		PinnedImages    map[string]string `toml:"pinned_images"`
		ImageDecryption `toml:"image_decryption"`
		NotRead         bool `toml:"use_local_image_pull"`
	}
	ImageDecryption struct {
		KeyModel string `toml:"key_model"`
	}
	runtimeConfig struct {
		ContainerdConfig `toml:"containerd"`
		NotRead          *bool `toml:"enable_criu"`
	}
	ContainerdConfig struct {
		DefaultRuntimeName string                  `toml:"default_runtime_name"`
		Runtimes           map[string]runtimeEntry `toml:"runtimes"`
	}
	boltConfig struct {
		NoSync bool `toml:"no_sync"`
	}
	runtimeEntry struct {
		Type    string         `toml:"runtime_type"`
		Options map[string]any `toml:"options"`
	}
)

// initContext returns an init context with loaded CRI plugins of containerd.
func initContext(t *testing.T, configs map[string]any) *plugin.InitContext {
	t.Helper()
	set := plugin.NewPluginSet()
	for id, config := range configs {
		of := plugins.CRIServicePlugin
		if id == "bolt" {
			of = plugins.MetadataPlugin
		}
		r := plugin.Registration{Type: of, ID: id, InitFn: func(*plugin.InitContext) (any, error) { return nil, nil }}
		ic := plugin.NewContext(t.Context(), set, nil)
		ic.Config = config
		if err := set.Add(r.Init(ic)); err != nil {
			t.Fatal(err)
		}
	}
	return plugin.NewContext(t.Context(), set, nil)
}

func TestInherit(t *testing.T) {
	images := &imageConfig{Snapshotter: "overlayfs", PinnedImages: map[string]string{"sandbox": "pause"}, ImageDecryption: ImageDecryption{KeyModel: "node"}}
	runtimes := &runtimeConfig{ContainerdConfig: ContainerdConfig{DefaultRuntimeName: "runc", Runtimes: map[string]runtimeEntry{
		"runc": {Type: "io.containerd.runc.v2", Options: map[string]any{"SystemdCgroup": true, "N": int64(1)}},
	}}}
	c, err := inherit(initContext(t, map[string]any{"images": images, "runtime": runtimes, "bolt": &boltConfig{NoSync: true}}))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Metadata.NoSync {
		t.Error("no_sync of the metadata database is not read")
	}
	if c.Images.Snapshotter != "overlayfs" || c.Images.ImageDecryption.KeyModel != "node" || c.SandboxImage() != "pause" {
		t.Errorf("unexpected image configuration %+v", c.Images)
	}
	h := c.Runtime.Containerd.Runtimes["runc"]
	if c.Runtime.Containerd.DefaultRuntimeName != "runc" || h.Type != "io.containerd.runc.v2" || h.Options["SystemdCgroup"] != true {
		t.Errorf("unexpected runtime configuration %+v", c.Runtime)
	}

	for name, configs := range map[string]map[string]any{
		"no images plugin":  {"runtime": runtimes},
		"no runtime plugin": {"images": images},
		"not a TOML value":  {"images": func() {}, "runtime": runtimes},
		"another type": {"images": &struct {
			Snapshotter int `toml:"snapshotter"`
		}{1}, "runtime": runtimes},
	} {
		if _, err := inherit(initContext(t, configs)); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
