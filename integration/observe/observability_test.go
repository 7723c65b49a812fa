package observe

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestObservabilityIsDocumented checks that docs/observability.md has every metric of a node, with labels and values.
func TestObservabilityIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/observability.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	address, config := metricsAddress(t)
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: config})
	r.MustApply(r.WriteLock("lock.yaml", map[string]string{r.Reg.Ref("shop/app:v1"): r.Version("shop/app:v1", "locked")}))
	for metric, labels := range labelsOf(scrape(t, address)) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			metric = strings.TrimSuffix(metric, suffix)
		}
		if !strings.Contains(doc, "| `"+metric+"` |") {
			t.Errorf("docs/observability.md does not document %s", metric)
		}
		for name, values := range labels {
			if name == "le" {
				continue
			}
			if !strings.Contains(doc, "`"+name+"`") {
				t.Errorf("docs/observability.md does not document label %s of %s", name, metric)
			}
			open := []string{"platform", "snapshotter", "digest"} // their values depend on the node
			for _, v := range values {
				if !slices.Contains(open, name) && !strings.Contains(doc, "`"+v+"`") {
					t.Errorf("docs/observability.md does not document %s=%q of %s", name, v, metric)
				}
			}
		}
	}
}
