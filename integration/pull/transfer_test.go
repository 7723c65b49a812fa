package pull

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// transferOptions returns the options of a node with a configuration of containerd's transfer service.
func transferOptions(text string) node.Options {
	text = fmt.Sprintf("[plugins.%q]\n", testkit.TransferSection) + text
	return node.Options{NoPods: true, Extra: text, ServeExtra: text}
}

// heldLayers are the requests for layers that a registry has not answered.
type heldLayers struct {
	mu   sync.Mutex
	held []chan struct{}
	most int
}

// rule holds requests for the blobs of a repository, except for its configuration.
func (h *heldLayers) rule(repo, config string) func(registry.Request) *registry.Fault {
	return func(q registry.Request) *registry.Fault {
		if q.Kind != registry.Blob || q.Repository != repo || q.Reference == config {
			return nil
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		answer := make(chan struct{})
		h.held = append(h.held, answer)
		h.most = max(h.most, len(h.held))
		return &registry.Fault{Hang: answer}
	}
}

func (h *heldLayers) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.held)
}

// release answers the oldest request.
func (h *heldLayers) release() {
	h.mu.Lock()
	defer h.mu.Unlock()
	close(h.held[0])
	h.held = h.held[1:]
}

// TestTransferServiceLimitsDownloads sets max_concurrent_downloads of containerd's transfer service below and above its
// default, 3, and counts the layers that are fetched concurrently.
func TestTransferServiceLimitsDownloads(t *testing.T) {
	t.Parallel()
	const layers = 7 // besides those that all images share
	opts := images.Options{}
	for i := range layers {
		opts.Files = append(opts.Files, images.Files{fmt.Sprintf("/file%d", i): []byte("here")})
	}
	img := testkit.App(t, opts)
	config, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 5} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			r := testkit.NewRig(t, transferOptions(fmt.Sprintf("max_concurrent_downloads = %d\n", limit)))
			ready, _ := r.Push("ready:v1", images.Options{}, images.HostPlatform())
			r.MustPull(ready, "")
			tag, _ := r.PushImage("app:v1", testkit.App(t, opts))
			var h heldLayers
			r.Reg.SetFault(h.rule("app", config.String()))
			pulled := make(chan error, 1)
			go func() {
				_, err := r.Pull(r.Ctx, tag, "")
				pulled <- err
			}()
			r.Eventually(fmt.Sprintf("%d layers are fetched concurrently", limit), func() bool { return h.count() == limit })
			for range 10 {
				r.MustPull(ready, "") // time for requests above the limit
			}
			for range layers {
				r.Eventually("a layer is requested", func() bool { return h.count() > 0 })
				h.release()
			}
			if err := <-pulled; err != nil {
				t.Fatal(err)
			}
			if h.most != limit {
				t.Errorf("got %d concurrent fetches, want %d", h.most, limit)
			}
		})
	}
}

// TestTransferServiceIgnored checks that the log names each setting that imagepin ignores, and that pulls work.
func TestTransferServiceIgnored(t *testing.T) {
	t.Parallel()
	entry := func(snapshotter, more string) string {
		return fmt.Sprintf("[[plugins.%q.unpack_config]]\nplatform = %q\nsnapshotter = %q\n%s\n", testkit.TransferSection, images.HostPlatform(), snapshotter, more)
	}
	r := testkit.NewRig(t, transferOptions("config_path = \"/etc/elsewhere\"\nmax_concurrent_uploaded_layers = 1\n"+
		entry("native", "")+
		entry("overlayfs", "layer_types = [\"application/vnd.example\"]\n")+
		entry("overlayfs", "differ = \"none\"\noptional = true\n")))
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(tag, "")
	logs := strings.ReplaceAll(r.Logs(), `\"`, `"`)
	for _, message := range []string{
		"config_path", "max_concurrent_uploaded_layers", "unpack_config[1] is ignored: no runtime handler unpacks " + images.HostPlatform() + ` in "native"`,
		"unpack_config[2] is ignored: config_type and layer_types apply to artifacts", `unpack_config: differ "none" is ignored for snapshotter "overlayfs"`,
	} {
		if want := fmt.Sprintf("[plugins.%q] %s", testkit.TransferSection, message); !strings.Contains(logs, want) {
			t.Errorf("the log does not contain %s", want)
		}
	}
}
