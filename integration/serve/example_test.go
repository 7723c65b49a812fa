package serve

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestExampleConfig starts imagepin serve with the example in contrib/config/serve, with another metrics address.
func TestExampleConfig(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "contrib", "config", "serve", "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	r := started(t, node.Options{
		NoPods: true, Handlers: []node.Handler{{Name: "kata"}},
		ServeExtra: strings.ReplaceAll(string(text), "127.0.0.1:9099", testkit.Address(t)),
	})
	if !strings.Contains(r.Logs(), `handler=kata target="linux/arm64 on overlayfs"`) {
		t.Error("the handler of the example does not have its target")
	}
	if strings.Contains(r.Logs(), "is ignored: ") {
		t.Error("the example has an ignored key")
	}
}
