package node

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// TestEveryEventOfPinsIsCountedFromZero keeps the metric's events those of the
// pins: package metrics does not know them.
func TestEveryEventOfPinsIsCountedFromZero(t *testing.T) {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := make(map[string]bool)
	for _, f := range families {
		if f.GetName() != "imagepin_pin_events_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			counted[m.GetLabel()[0].GetValue()] = true
		}
	}
	all := []pin.Event{pin.Made, pin.Moved, pin.Removed, pin.Expired, pin.Evicted, pin.Drifted}
	for _, e := range all {
		if !counted[string(e)] {
			t.Errorf("event %s is not counted before it has happened", e)
		}
	}
	if len(counted) != len(all) {
		t.Errorf("%d events are counted, of %d", len(counted), len(all))
	}
}
