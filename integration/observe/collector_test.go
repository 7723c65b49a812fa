package observe

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// spanCollector is an OpenTelemetry collector that keeps the spans that it receives.
type spanCollector struct {
	t      *testing.T
	server *httptest.Server

	mu    sync.Mutex
	spans []*otlp.Span
}

func newSpanCollector(t *testing.T) *spanCollector {
	t.Helper()
	c := &spanCollector{t: t}
	c.server = httptest.NewServer(http.HandlerFunc(c.collect))
	t.Cleanup(c.server.Close)
	return c
}

// env returns the environment in which containerd sends its spans to the collector every 20 ms.
func (c *spanCollector) env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.server.URL, "OTEL_BSP_SCHEDULE_DELAY=20"}
}

func (c *spanCollector) collect(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var sent collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &sent); err != nil {
		c.t.Errorf("%s %s: %v", r.Method, r.URL, err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range sent.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

// trace returns the spans of a trace by path: the names of the spans above and of the span itself, joined by " > ".
func (c *spanCollector) trace(id string) map[string][]*otlp.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	byID := make(map[string]*otlp.Span)
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == id {
			byID[string(s.GetSpanId())] = s
		}
	}
	all := make(map[string][]*otlp.Span)
	for _, s := range byID {
		var path []string
		for up := s; up != nil; up = byID[string(up.GetParentSpanId())] {
			path = append(path, up.GetName())
		}
		slices.Reverse(path)
		name := strings.Join(path, " > ")
		all[name] = append(all[name], s)
	}
	return all
}

// attribute returns the string value of an attribute of a span, or "".
func attribute(s *otlp.Span, name string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}
