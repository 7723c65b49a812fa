// Package monitoring reads the Grafana dashboard and the rules for Prometheus in contrib. Its tests run their queries on a
// Prometheus that scrapes a node.
package monitoring

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// contrib is the path of contrib from the directory of a package of integration tests.
const contrib = "../../contrib"

// Dashboard has the fields of a Grafana dashboard that tests check.
type Dashboard struct {
	UID           string  `json:"uid"`
	Title         string  `json:"title"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []Panel `json:"panels"`
	Templating    struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Panel is a panel of a dashboard, or the title of a row of panels.
type Panel struct {
	ID          int        `json:"id"`
	Type        string     `json:"type"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Datasource  Datasource `json:"datasource"`
	GridPos     struct{ X, Y, W, H int }
	Targets     []Target `json:"targets"`
}

// IsRow reports whether the panel is the title of a row, which has no queries.
func (p Panel) IsRow() bool { return p.Type == "row" }

// Target is a query of a panel.
type Target struct {
	Datasource   Datasource `json:"datasource"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat"`
	RefID        string     `json:"refId"`
	// Instant is whether the panel shows only the current value.
	Instant bool `json:"instant"`
}

// Variable is a variable of a dashboard.
type Variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Query      any    `json:"query"`
	Definition string `json:"definition"`
}

// Datasource is the data source of a panel or a query.
type Datasource struct{ Type, UID string }

// ReadDashboard reads the dashboard in contrib/grafana.
func ReadDashboard() (d Dashboard, err error) {
	b, err := os.ReadFile(filepath.Join(contrib, "grafana", "imagepin.json"))
	if err != nil {
		return d, err
	}
	return d, json.Unmarshal(b, &d)
}

// AllInstances is the value of the variable instance if all nodes are selected.
const AllInstances = ".*"

// OneInstance returns the value of the variable instance if one node is selected. Grafana escapes what is special in a
// regular expression, for a string of PromQL.
func OneInstance(instance string) string {
	return strings.ReplaceAll(regexp.QuoteMeta(instance), `\`, `\\`)
}

// Query returns the query with which Grafana replaces the variables.
func (t Target) Query(instance, rateInterval string) string {
	return strings.NewReplacer("$instance", instance, "$__rate_interval", rateInterval).Replace(t.Expr)
}
