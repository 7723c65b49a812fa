package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	otlp "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/imagepin/imagepin/integration/collector"
)

// span is a span with the spans below it, in the order in which they start.
type span struct {
	Name, Note      string
	Start, Duration time.Duration // Start is since the start of the first span
	Children        []*span
}

// treeOf returns the root of a trace. The spans are by their IDs. The parent of the root is not among them.
func treeOf(spans map[string]*otlp.Span) (*span, error) {
	byStart := slices.SortedFunc(maps.Values(spans), func(a, b *otlp.Span) int {
		return cmp.Or(cmp.Compare(a.GetStartTimeUnixNano(), b.GetStartTimeUnixNano()), cmp.Compare(a.GetName(), b.GetName()))
	})
	nodes := make(map[string]*span)
	for _, s := range byStart {
		nodes[string(s.GetSpanId())] = &span{
			Name: s.GetName(), Note: noteOf(s),
			Start:    time.Duration(s.GetStartTimeUnixNano() - byStart[0].GetStartTimeUnixNano()),
			Duration: time.Duration(s.GetEndTimeUnixNano() - s.GetStartTimeUnixNano()),
		}
	}
	var root *span
	for _, s := range byStart {
		node := nodes[string(s.GetSpanId())]
		if parent, ok := nodes[string(s.GetParentSpanId())]; ok {
			parent.Children = append(parent.Children, node)
			continue
		}
		if root != nil {
			return nil, fmt.Errorf("spans %s and %s are both without a parent", root.Name, node.Name)
		}
		root = node
	}
	if root == nil {
		return nil, errors.New("the trace has no root")
	}
	return root, nil
}

// noteOf returns what the attributes of a span tell about it, or "".
func noteOf(s *otlp.Span) string {
	if done := collector.Attribute(s, "done"); done != "" {
		return "done=" + done
	}
	if method := collector.Attribute(s, "http.request.method"); method != "" {
		_, what, _ := strings.Cut(collector.Attribute(s, "url.full"), "/team/app/")
		return method + " " + shortened(what)
	}
	kind := collector.Attribute(s, "descriptor.media.type")
	switch {
	case strings.Contains(kind, ".manifest."):
		return "manifest"
	case strings.Contains(kind, ".config."):
		return "configuration"
	}
	if layer := collector.Attribute(s, "layer.media.digest"); layer != "" {
		return "layer " + shortened(layer)
	}
	return ""
}

// shortened returns a text with the first four digits of the digest at its end.
func shortened(s string) string {
	before, hex, ok := strings.Cut(s, "sha256:")
	if !ok {
		return s
	}
	return before + hex[:min(4, len(hex))] + "…"
}

// paths returns the path of each span, sorted: the names of the spans above and of the span itself, joined by " > ".
func (s *span) paths() []string {
	all := []string{s.Name}
	for _, c := range s.Children {
		for _, p := range c.paths() {
			all = append(all, s.Name+" > "+p)
		}
	}
	slices.Sort(all)
	return all
}
