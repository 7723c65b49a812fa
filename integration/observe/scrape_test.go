package observe

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/integration/testkit"
)

// series are values by metric and labels, as in the text format: `imagepin_pulls_total{done="fetched"}`.
type series map[string]float64

// metricsAddress returns a free address, and the configuration with which containerd serves its metrics there.
func metricsAddress(t *testing.T) (address, config string) {
	t.Helper()
	address = testkit.Address(t)
	return address, fmt.Sprintf("[plugins.\"io.containerd.server.v1.metrics\"]\naddress = %q\n", address)
}

var sample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*(?:\{.*\})?) ([^ ]+)$`)

// scrape reads imagepin's metrics from containerd.
func scrape(t *testing.T, address string) series {
	t.Helper()
	all := make(series)
	for line := range strings.Lines(exposition(t, address)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "imagepin_") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("invalid metrics line %q", line)
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			t.Fatalf("invalid metrics line %q: %v", line, err)
		}
		all[m[1]] = v
	}
	return all
}

// exposition returns all of containerd's metrics in the text format.
func exposition(t *testing.T, address string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/v1/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("reading the metrics: %s, %v", resp.Status, err)
	}
	return string(b)
}

// since returns the changes of the series, without the durations of lookups.
func (s series) since(before series) series {
	changed := make(series)
	for name, v := range s {
		if v != before[name] && !strings.HasPrefix(name, "imagepin_resolve_seconds_bucket") && name != "imagepin_resolve_seconds_sum" {
			changed[name] = v - before[name]
		}
	}
	for name, v := range before {
		if _, ok := s[name]; !ok {
			changed[name] = -v
		}
	}
	return changed
}
