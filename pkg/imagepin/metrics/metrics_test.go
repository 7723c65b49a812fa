package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imagepin/imagepin/pkg/imagepin/lookup"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// gather returns the values of metrics by name and label values.
func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := []string{strings.TrimPrefix(f.GetName(), namespace+"_")}
			for _, l := range m.GetLabel() {
				name = append(name, l.GetValue())
			}
			all[strings.Join(name, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return all
}

// TestTwoNodes checks that two nodes in one process have separate counters, which start at zero.
func TestTwoNodes(t *testing.T) {
	one, other := New(), New()
	registries := map[*Metrics]*prometheus.Registry{one: prometheus.NewRegistry(), other: prometheus.NewRegistry()}
	for m, r := range registries {
		state := State{Keys: map[Target]int{{"linux/amd64", "overlayfs"}: 3}, Pins: map[string]int{"node": 2}, Drifted: 1, OldestDrift: time.Unix(11, 0), Gone: 14, NamespacePins: 4, NamespacePinsLimit: 5, Provisional: 3,
			RetainedBytes: 7, RetainedBytesLimit: 8, Reconcile: 9 * time.Second, Pulls: 10, PullsLeft: 13,
			Lock: Lock{Digest: "sha256:1", AppliedAt: time.Unix(12, 0), Images: 5, Ready: 3, Drifted: 6, Failed: true}}
		if err := m.Register(r, func() State { return state }); err != nil {
			t.Fatal(err)
		}
	}
	one.Resolved(resolve.Denied, time.Second)
	one.Pulled(pull.Fetched)
	one.Pulled(pull.Fetched)
	one.FallbackUsed()
	one.RepairFailed()
	one.NotInLock(policy.LockedStrict)
	one.PinEvent(pin.Drifted)
	one.Claimed(pin.Lost, time.Second)
	one.Lost() // is not a question
	one.LookedUp(lookup.NoAccess)
	want := map[string]float64{"keys linux/amd64 overlayfs": 3, "pins node": 2, "pins_drifted": 1, "retained_bytes": 7,
		"pins_oldest_drift_timestamp_seconds": 11, "namespace_pins": 4, "namespace_pins_limit": 5, "retained_limit_bytes": 8, "reconcile_seconds": 9, "pulls_running": 10, "pulls_left_bytes": 13, "pins_gone": 14}
	want["lock_info sha256:1"], want["lock_applied_timestamp_seconds"], want["lock_apply_failed"], want["lock_drifted_containers"] = 1, 12, 1, 6
	want["lock_images ready"], want["lock_images missing"], want["not_in_lock_total warn"], want["not_in_lock_total strict"] = 3, 2, 0, 0
	for _, r := range resolve.Results {
		want["resolves_total "+string(r)] = 0
	}
	for _, o := range pull.Outcomes {
		want["pulls_total "+string(o)] = 0
	}
	for _, e := range pin.Events {
		want["pin_events_total "+string(e)] = 0
	}
	for _, o := range pin.Outcomes {
		want["claims_total "+string(o)] = 0
	}
	for _, o := range lookup.Outcomes {
		want["lookups_total "+string(o)] = 0
	}
	want["failed_repairs_total"] = 0
	want["registry_fallbacks_total"], want["resolve_seconds"], want["claim_seconds"], want["pins_provisional"] = 0, 0, 0, 3
	compare := func(who string, m *Metrics) {
		t.Helper()
		got := gather(t, registries[m])
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				t.Errorf("%s: %s: got %v (present: %v), want %v", who, name, v, ok, value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: got %d values, want %d: %v", who, len(got), len(want), got)
		}
	}
	compare("the other node", other)
	for _, name := range []string{"resolves_total denied", "registry_fallbacks_total", "failed_repairs_total", "pin_events_total drifted", "not_in_lock_total strict", "resolve_seconds", "claim_seconds", "lookups_total no_access"} {
		want[name] = 1
	}
	want["pulls_total fetched"], want["claims_total lost"] = 2, 2
	compare("the node", one)
}
