package cri

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// forwarded are the methods whose messages name an image or a runtime handler, and that go to upstream unchanged.
var forwarded = map[string]string{
	"ListPodSandbox":     "the handler is the one that RunPodSandbox was called with",
	"StreamPodSandboxes": "as ListPodSandbox",
}

// TestMessagesWithImages walks the messages of all methods of the CRI. For each method whose messages name an image or a runtime handler
// somebody has decided that it is answered here, or why it is forwarded.
func TestMessagesWithImages(t *testing.T) {
	here := map[string]bool{}
	for _, i := range New(Config{}).interceptors() {
		for _, name := range slices.Concat(slices.Collect(maps.Keys(i.unary)), slices.Collect(maps.Keys(i.streams)), slices.Collect(maps.Keys(i.endless))) {
			here[name] = true
		}
	}
	for _, m := range methods(t) {
		name := string(m.Name())
		found := append(imageFields(m.Input(), nil), imageFields(m.Output(), nil)...)
		why, forwards := forwarded[name]
		switch {
		case forwards && (here[name] || len(found) == 0 || why == ""):
			t.Errorf("%s is forwarded: %q, but it is answered here (%t) or has no image (%q)", name, why, here[name], found)
		case !forwards && !here[name] && len(found) > 0:
			t.Errorf("%s is neither answered here nor in the list of what is forwarded, and has %q", name, found)
		}
	}
}

// imageFields returns the fields of a message, and of those in it, that name an image or a runtime handler.
func imageFields(m protoreflect.MessageDescriptor, above []protoreflect.FullName) (found []string) {
	if slices.Contains(above, m.FullName()) {
		return nil
	}
	above = append(above, m.FullName())
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		name := string(f.FullName())
		switch {
		case f.Message() != nil && f.Message().FullName() == "runtime.v1.ImageSpec":
			found = append(found, name)
		case f.Kind() == protoreflect.StringKind && (strings.Contains(string(f.Name()), "image") || strings.Contains(string(f.Name()), "handler")):
			found = append(found, name)
		case f.Message() != nil:
			found = append(found, imageFields(f.Message(), above)...)
		}
	}
	return found
}
