package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestExampleConfigs starts containerd with every example of contrib/config. The example loads and has no ignored keys.
func TestExampleConfigs(t *testing.T) {
	files, err := filepath.Glob("../../contrib/config/*.toml")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatal("found no examples")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			n := testkit.Node(t, node.Options{Extra: string(text)})
			if _, err := n.ListImages(testkit.Context(t)); err != nil {
				t.Errorf("the CRI is not served: %v", err)
			}
			logs := n.Logs()
			if !strings.Contains(logs, "imagepin is ready") {
				t.Error("imagepin did not start")
			}
			for line := range strings.Lines(logs) {
				if strings.Contains(line, "Ignoring unknown key") || strings.Contains(line, "is ignored: ") {
					t.Errorf("the example has an ignored key: %s", line)
				}
			}
		})
	}
}
