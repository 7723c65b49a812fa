package serve

import (
	"os"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestPauseIsPinned starts imagepin without pinned_images. The sandbox image that containerd pins, because of its own configuration, is
// reported as pinned.
func TestPauseIsPinned(t *testing.T) {
	t.Parallel()
	r := newRig(t, node.Options{})
	r.must(changeServeConfig(r.ServeConfig(), func(plugins map[string]any) {
		delete(plugins[imagesSection].(map[string]any), "pinned_images")
	}))
	r.must(r.StartContainerd())
	r.must(r.StartServe())
	r.must(r.WaitReady(r.Ctx))
	r.MustPod("")
	r.pull(r.push("app:v1", "v1"), "")
	app := r.push("app:v1", "v1")
	r.pull(app, "")
	r.eventually("the sandbox image is pinned", func() bool { return r.MustStatus(r.Reg.Ref(testkit.PauseRef), "").GetPinned() })
	if r.MustStatus(app, "").GetPinned() {
		t.Error("another image is pinned too")
	}
}

// changeServeConfig changes the plugins' sections in a configuration of imagepin serve.
func changeServeConfig(file string, change func(plugins map[string]any)) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	c := map[string]any{}
	if err := toml.Unmarshal(text, &c); err != nil {
		return err
	}
	change(c["plugins"].(map[string]any))
	if text, err = toml.Marshal(c); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
