package serve

import (
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestReloadGuestPull takes guest_pull back while a pull for guests runs, and sets it while another pull runs, and takes it back. That pull
// may fail. The next one runs, and no container gets an image without files.
func TestReloadGuestPull(t *testing.T) {
	t.Parallel()
	unpacked := strings.Replace(testkit.GuestHandler, "true", "false", 1)
	for name, c := range map[string]struct{ before, after string }{
		"taken back": {testkit.GuestHandler, unpacked},
		"set":        {unpacked, testkit.GuestHandler},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := started(t, testkit.WithSecond("native", node.Options{Extra: c.before}))
			tag := r.push("app:v1", "v1")
			begun, release := r.hang(registry.Is("GET", registry.Blob))
			pulled := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, tag, testkit.Second) })
			begun()
			r.reload(func(o *node.Options) { o.Extra = c.after })
			release()
			if _, err := pulled(); err != nil {
				t.Logf("the pull during the reload: %v", err)
			}
			if c.after == testkit.GuestHandler {
				r.reload(func(o *node.Options) { o.Extra = unpacked })
			}
			r.pull(tag, testkit.Second)
			r.WantRun(testkit.Second, tag, testkit.Line(images.Options{}, images.HostPlatform()))
			if found := r.DeepCheck(false); len(found) > 0 {
				t.Errorf("a deep check finds %v", found)
			}
		})
	}
}
