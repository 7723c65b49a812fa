package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
)

// TestExampleConfig serves with the example in contrib/config/serve, but for its address of metrics.
func TestExampleConfig(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "contrib", "config", "serve", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	r := started(t, node.Options{
		NoPods: true, Handlers: []node.Handler{{Name: "kata"}},
		ServeExtra: strings.ReplaceAll(string(text), "127.0.0.1:9099", freeAddress(t)),
	})
	if !strings.Contains(r.Logs(), `handler=kata target="linux/arm64 on overlayfs"`) {
		t.Error("the handler of the example is not served as it says")
	}
	if strings.Contains(r.Logs(), "is ignored: ") {
		t.Error("the example is not heeded as it stands")
	}
}
