package observe

import (
	"fmt"
	"maps"
	"testing"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLookupMetrics checks how lookups change the metrics. They are no lookups of pulls: one without access must not raise the alert
// about pulls that are denied.
func TestLookupMetrics(t *testing.T) {
	address, config := metricsAddress(t)
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: config + testkit.PinRules})
	digest := testkit.Push(t, r.Reg, "pinned/app:1", testkit.AppIndex(t, images.Options{Version: "1"}, images.HostPlatform()))
	r.MustPull(r.Reg.Ref("pinned/app:1"), "")
	before := scrape(t, address)
	check := func(step string, code int, want series) {
		t.Helper()
		r.WantOperator(code, []string{"pin", "ls", "--check"})
		now := scrape(t, address)
		if got := now.since(before); !maps.Equal(got, want) {
			t.Errorf("%s: got changes %v, want %v", step, got, want)
		}
		before = now
	}
	lookedUp := func(outcome string) string { return fmt.Sprintf("imagepin_lookups_total{outcome=%q}", outcome) }
	check("present", 0, series{lookedUp("present"): 1})
	r.Reg.SetAuth(testkit.OnlyAlice(false))
	check("no access", 0, series{lookedUp("no_access"): 1})
	r.Reg.SetAuth(nil)
	if err := r.Reg.Delete("pinned/app@" + digest.String()); err != nil {
		t.Fatal(err)
	}
	check("gone", 10, series{lookedUp("gone"): 1, pinEvent("gone"): 1, "imagepin_pins_gone": 1})
	check("still gone", 10, series{lookedUp("gone"): 1})
	r.Reg.Down()
	check("no answer", 10, series{lookedUp("no_answer"): 1})
	testkit.Push(t, r.Reg, "pinned/app:1", testkit.AppIndex(t, images.Options{Version: "1"}, images.HostPlatform()))
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	check("present again", 0, series{lookedUp("present"): 1, "imagepin_pins_gone": -1})
}
