package observe

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestObservabilityIsDocumented looks for every metric of a node, with its labels and their values, in docs/observability.md.
func TestObservabilityIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	address, config := metricsAddress(t)
	testkit.Node(t, node.Options{NoPods: true, Extra: config})
	for metric, labels := range labelsOf(scrape(t, address)) {
		for _, of := range []string{"_bucket", "_sum", "_count"} {
			metric = strings.TrimSuffix(metric, of)
		}
		if !strings.Contains(doc, "| `"+metric+"` |") {
			t.Errorf("docs/observability.md does not say what %s is", metric)
		}
		for name, values := range labels {
			if name == "le" {
				continue
			}
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/observability.md does not say what the label %s of %s is", name, metric)
			}
			open := []string{"platform", "snapshotter"} // whose values are the node's
			for _, v := range values {
				if !slices.Contains(open, name) && !strings.Contains(doc, "`"+v+"`") {
					t.Errorf("docs/observability.md does not say what %s=%q of %s is", name, v, metric)
				}
			}
		}
	}
}
