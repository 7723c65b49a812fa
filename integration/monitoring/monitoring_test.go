package monitoring

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/imagepin/imagepin/integration/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// notCaused are the alerts whose cause the load does not have. The tests of the rules fire them.
var notCaused = map[string]string{
	"ImagepinClaimsLost":        "needs a second node",
	"ImagepinDriftOld":          "takes a day",
	"ImagepinReconcileSlow":     "needs a snapshotter that does not answer",
	"ImagepinRetainedNearLimit": "depends on the size of images",
}

// refreshed is the panel whose value is 0 after the load, which has refreshed the pin with drift.
const refreshed = "Pinned tags that have moved"

// TestPrometheus checks, with a Prometheus that scrapes a node under load, that every query of the dashboard shows
// something of the load, and that Prometheus can evaluate every alert and finds those that the load causes.
func TestPrometheus(t *testing.T) {
	since := time.Now()
	l := newLoad(t)
	l.run()
	t.Run("dashboard", func(t *testing.T) { checkDashboard(t, l, since) })
	t.Run("alerts", func(t *testing.T) { checkAlerts(t, l.prometheus) })
}

// checkDashboard runs every query with all nodes and with one node selected. A query needs a value above 0, because one that
// selects the wrong series can show 0.
func checkDashboard(t *testing.T, l *load, since time.Time) {
	ctx := testkit.Context(t)
	d, err := ReadDashboard()
	if err != nil {
		t.Fatal(err)
	}
	for _, selected := range []string{AllInstances, OneInstance(l.target)} {
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				// Grafana's interval of rates is at least four scrapes. It is longer if the graph shows more time.
				expr := q.Query(selected, (15 * scrapeInterval).String())
				found, err := l.prometheus.queryRange(ctx, expr, since)
				if q.Instant && p.Title != refreshed {
					found, err = l.prometheus.query(ctx, expr)
				}
				if err != nil || !slices.ContainsFunc(found, series.shows) {
					t.Errorf("%s %s shows nothing of the load: %s: %v, %v", p.Title, q.RefID, expr, found, err)
				}
			}
		}
	}
	var instances []string
	if err := l.prometheus.ask(ctx, "label/instance/values", url.Values{"match[]": {"imagepin_pins_drifted"}}, &instances); err != nil || !slices.Equal(instances, []string{l.target}) {
		t.Errorf("the values of the variable instance: got %q, %v, want %q", instances, err, l.target)
	}
}

// shows reports whether a value is above 0, which NaN is not.
func (s series) shows() bool {
	return slices.ContainsFunc(append(s.Values, s.Value), func(v sample) bool { return v.value > 0 })
}

// checkAlerts waits until every alert has been evaluated after the load, and checks the results.
func checkAlerts(t *testing.T, p *prometheus) {
	alerts, err := ReadAlerts()
	if err != nil {
		t.Fatal(err)
	}
	loaded := time.Now()
	var rules []rule
	testkit.Eventually(t, "all alerts are evaluated", func(ctx context.Context) (_ bool, err error) {
		rules, err = p.rules(ctx)
		return len(rules) > 0 && !slices.ContainsFunc(rules, func(r rule) bool { return !r.LastEvaluation.After(loaded) }), err
	})
	if len(rules) != len(alerts) {
		t.Errorf("Prometheus has %d alerts, want the %d of the rule file", len(rules), len(alerts))
	}
	for _, r := range rules {
		if r.Health != "ok" {
			t.Errorf("alert %s has health %q: %s", r.Name, r.Health, r.LastError)
		}
		if got, want := r.State != "inactive", notCaused[r.Name] == ""; got != want {
			t.Errorf("alert %s is %s, want it active: %t", r.Name, r.State, want)
		}
	}
}

// TestScrapeInterval checks that scrape.yaml scrapes as often as Grafana expects by default. With a longer interval, the
// shortest interval of rates, a minute, can have a single sample, and the panels with rates are empty.
func TestScrapeInterval(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(contrib, "prometheus", "scrape.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Global struct {
			ScrapeInterval time.Duration `yaml:"scrape_interval"`
		} `yaml:"global"`
	}
	if err := yaml.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	const expected = 15 * time.Second
	if got := config.Global.ScrapeInterval; got == 0 || got > expected {
		t.Errorf("scrape.yaml scrapes every %s, want at most %s", got, expected)
	}
}
