package observe

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/monitoring"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

var (
	selector  = regexp.MustCompile(`\b([a-z][a-z0-9_]*_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher   = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping  = regexp.MustCompile(`\b(?:by|without)\s*\(([^)]*)\)`)
	legend    = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
	labelText = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
)

// functions are functions of PromQL with names like metrics.
var functions = []string{"histogram_quantile", "label_values"}

// fromPrometheus are labels that Prometheus adds to scraped metrics.
var fromPrometheus = []string{"instance", "job"}

func readAlerts(t *testing.T) []monitoring.Alert {
	t.Helper()
	alerts, err := monitoring.ReadAlerts()
	if err != nil {
		t.Fatal(err)
	}
	return alerts
}

func readDashboard(t *testing.T) monitoring.Dashboard {
	t.Helper()
	d, err := monitoring.ReadDashboard()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDashboardIsComplete checks that any Grafana can show the dashboard, and that every panel has a description.
func TestDashboardIsComplete(t *testing.T) {
	d := readDashboard(t)
	if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 || len(d.Panels) == 0 {
		t.Errorf("uid %q, title %q, schema version %d, %d panels", d.UID, d.Title, d.SchemaVersion, len(d.Panels))
	}
	if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" || d.Templating.List[0].Query != "prometheus" {
		t.Errorf("the first variable is not the data source: %+v", d.Templating.List)
	}
	chosen := monitoring.Datasource{Type: "prometheus", UID: "${datasource}"}
	ids := make(map[int]string)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		if p.Title == "" || p.Type == "" || !p.IsRow() && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("panel %d has title %q, description %q, type %q, %d queries", p.ID, p.Title, p.Description, p.Type, len(p.Targets))
		}
		if other, ok := ids[p.ID]; ok || p.ID == 0 {
			t.Errorf("panel %q has ID %d, which is 0 or that of panel %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if p.GridPos.X+p.GridPos.W > 24 || p.GridPos.W == 0 || p.GridPos.H == 0 {
			t.Errorf("panel %q is at %+v, want it within a grid of width 24", p.Title, p.GridPos)
		}
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if other, ok := taken[at]; ok {
					t.Fatalf("panels %q and %q overlap", p.Title, other)
				}
				taken[at] = p.Title
			}
		}
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			if p.Datasource != chosen || q.Datasource != chosen {
				t.Errorf("panel %q: got data sources %v and %v, want the variable", p.Title, p.Datasource, q.Datasource)
			}
			if refs[q.RefID] || q.RefID == "" {
				t.Errorf("panel %q: query ID %q is empty or not unique", p.Title, q.RefID)
			}
			refs[q.RefID] = true
		}
	}
}

// TestAlertsAreComplete checks that docs/observability.md names every alert, and that the runbook and the labels of an alert
// exist.
func TestAlertsAreComplete(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Error(err)
		}
		return string(b)
	}
	heading, templated := regexp.MustCompile(`(?m)^#+ (.*)$`), regexp.MustCompile(`\$labels\.(\w+)`)
	names := make(map[string]bool)
	for _, a := range readAlerts(t) {
		if names[a.Alert] || !strings.HasPrefix(a.Alert, "Imagepin") {
			t.Errorf("alert %q: its name is not unique, or does not begin with Imagepin", a.Alert)
		}
		names[a.Alert] = true
		if severity := a.Labels["severity"]; !slices.Contains([]string{"info", "warning", "critical"}, severity) {
			t.Errorf("alert %s has severity %q", a.Alert, severity)
		}
		if !strings.Contains(read("docs/observability.md"), "`"+a.Alert+"`") {
			t.Errorf("docs/observability.md does not have alert %s", a.Alert)
		}
		for _, key := range []string{"summary", "description", "runbook"} {
			if a.Annotations[key] == "" {
				t.Errorf("alert %s has no %s", a.Alert, key)
			}
			for _, l := range templated.FindAllStringSubmatch(a.Annotations[key], -1) {
				if !slices.Contains(fromPrometheus, l[1]) {
					t.Errorf("alert %s uses label %s, which not every alert has", a.Alert, l[1])
				}
			}
		}
		file, anchor, _ := strings.Cut(a.Annotations["runbook"], "#")
		if !slices.ContainsFunc(heading.FindAllStringSubmatch(read(file), -1), func(h []string) bool {
			return strings.ReplaceAll(strings.ToLower(h[1]), " ", "-") == anchor
		}) {
			t.Errorf("alert %s: %s has no section %s", a.Alert, file, anchor)
		}
	}
}

// TestDashboardMatchesMetrics checks that every metric, label and label value in the dashboard and in the alerts exists on a
// node with a lock, and that the dashboard shows every metric.
func TestDashboardMatchesMetrics(t *testing.T) {
	address, config := metricsAddress(t)
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: config})
	r.MustApply(r.WriteLock("lock.yaml", map[string]string{r.Reg.Ref("shop/app:v1"): r.Version("shop/app:v1", "locked")}))
	existing := labelsOf(scrape(t, address))
	shown := make(map[string]bool)

	check := func(where, expr, legendFormat string) {
		t.Helper()
		labels := func(metric string) map[string][]string { return existing[metric] }
		var metrics []string
		for _, m := range selector.FindAllStringSubmatch(expr, -1) {
			name := m[1]
			if slices.Contains(functions, name) {
				continue
			}
			if labels(name) == nil {
				t.Errorf("%s uses metric %s, which does not exist", where, name)
				continue
			}
			metrics = append(metrics, name)
			shown[name] = true
			for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
				values, ok := labels(name)[l[1]]
				if !ok && !slices.Contains(fromPrometheus, l[1]) {
					t.Errorf("%s uses label %s of %s, which does not exist", where, l[1], name)
				}
				if ok && !slices.Contains(values, l[2]) {
					t.Errorf("%s uses %s=%q of %s, which has the values %q", where, l[1], l[2], name, values)
				}
			}
		}
		if len(metrics) == 0 {
			t.Errorf("%s uses no metric: %s", where, expr)
		}
		grouped := append([]string{}, fromPrometheus...)
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for l := range strings.SplitSeq(g[1], ",") {
				l = strings.TrimSpace(l)
				grouped = append(grouped, l)
				if slices.Contains(fromPrometheus, l) {
					continue
				}
				for _, name := range metrics {
					if _, ok := labels(name)[l]; !ok {
						t.Errorf("%s groups %s by label %s, which does not exist", where, name, l)
					}
				}
			}
		}
		for _, l := range legend.FindAllStringSubmatch(legendFormat, -1) {
			if !slices.Contains(grouped, l[1]) {
				t.Errorf("%s: the legend uses label %s, by which the query does not group", where, l[1])
			}
		}
	}
	d := readDashboard(t)
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			check(p.Title+" "+q.RefID, q.Expr, q.LegendFormat)
		}
	}
	for _, v := range d.Templating.List {
		if v.Definition != "" {
			name, _, _ := strings.Cut(strings.TrimPrefix(v.Definition, "label_values("), ",")
			check("variable "+v.Name, name, "")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(existing)) {
		if !shown[name] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
	for _, a := range readAlerts(t) {
		check("alert "+a.Alert, a.Expr, "")
	}
}

// labelsOf returns the labels of each metric with their values.
func labelsOf(s series) map[string]map[string][]string {
	all := make(map[string]map[string][]string)
	for full := range s {
		name, rest, _ := strings.Cut(full, "{")
		if all[name] == nil {
			all[name] = make(map[string][]string)
		}
		for _, l := range labelText.FindAllStringSubmatch(rest, -1) {
			all[name][l[1]] = append(all[name][l[1]], l[2])
		}
	}
	return all
}
