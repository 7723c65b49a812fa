// Package collector has an OpenTelemetry collector for tests of traces.
package collector

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is an OpenTelemetry collector that keeps the spans that it receives.
type Collector struct {
	server *httptest.Server

	mu    sync.Mutex
	spans []*otlp.Span
}

// New starts a collector. It rejects what is not OTLP, so that the spans are missing.
func New() *Collector {
	c := &Collector{}
	c.server = httptest.NewServer(http.HandlerFunc(c.collect))
	return c
}

// Close stops the collector.
func (c *Collector) Close() { c.server.Close() }

// Env returns the environment in which containerd sends its spans to the collector every 20 ms.
func (c *Collector) Env() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.server.URL, "OTEL_BSP_SCHEDULE_DELAY=20"}
}

func (c *Collector) collect(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	var sent collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(b, &sent); err != nil {
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

// Spans returns the spans of a trace by their IDs.
func (c *Collector) Spans(trace string) map[string]*otlp.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	byID := make(map[string]*otlp.Span)
	for _, s := range c.spans {
		if hex.EncodeToString(s.GetTraceId()) == trace {
			byID[string(s.GetSpanId())] = s
		}
	}
	return byID
}

// Trace returns the spans of a trace by path: the names of the spans above and of the span itself, joined by " > ".
func (c *Collector) Trace(id string) map[string][]*otlp.Span {
	byID := c.Spans(id)
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

// Attribute returns the string value of an attribute of a span, or "".
func Attribute(s *otlp.Span, name string) string {
	for _, a := range s.GetAttributes() {
		if a.GetKey() == name {
			return a.GetValue().GetStringValue()
		}
	}
	return ""
}

// Parent returns the value of the gRPC header traceparent, with which a call belongs to a trace of the caller, as kubelet's
// calls do. The trace is 16 bytes in hexadecimal digits.
func Parent(trace string) string { return "00-" + trace + "-00000000000000aa-01" }
