package imagerefs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Field is a field of resources of a kind that has an image, such as Kafka:spec.kafka.image. As the configuration of kustomize's
// image transformer, it has a kind and a path.
type Field struct {
	Kind string
	path []step
	text string
}

// step is one key of a path.
type step struct {
	key  string
	each bool // of the items of the list
}

var keyPattern = regexp.MustCompile(`^[^.\[\]:\s]+(\[\*\])*$`)

// ParseField reads KIND:PATH. A path has keys with dots between them; [*] after a key means each item of a list, as in JSONPath. It
// fails with [imagepin.InvalidRequest] (ErrInvalidArgument).
func ParseField(text string) (Field, error) {
	kind, path, ok := strings.Cut(text, ":")
	path = strings.TrimPrefix(path, ".")
	f := Field{Kind: kind, text: kind + ":" + path}
	for key := range strings.SplitSeq(path, ".") {
		if !keyPattern.MatchString(key) || strings.Count(key, "[*]") > 1 {
			ok = false
			break
		}
		name, each := strings.CutSuffix(key, "[*]")
		f.path = append(f.path, step{name, each})
	}
	if kind == "" || !ok {
		return Field{}, imagepin.Invalid("field", imagepin.Bound(text, maxText), errors.New("must be a kind and a path, such as Kafka:spec.kafka.image or Set:spec.items[*].image"))
	}
	return f, nil
}

// String returns the field as [ParseField] reads it.
func (f Field) String() string { return f.text }

// Skipped is a text in a field of a resource that looks like an image, but of which it is not known whether it is one.
type Skipped struct {
	Place Place
	Text  string
	// Field is the field to find it with.
	Field string
}

// fields adds the images in the fields of a resource.
func (r *reader) fields(place Place, resource map[string]any) {
	for n, f := range r.options.Fields {
		if resource["kind"] == f.Kind && r.walk(place, resource, f.path) {
			r.used[n] = true
		}
	}
}

// walk adds the images at a path. It reports whether there is one.
func (r *reader) walk(place Place, value any, path []step) (found bool) {
	fields, ok := mapping(value).(map[string]any)
	if !ok {
		return false
	}
	s := path[0]
	child, ok := fields[s.key]
	if !ok {
		return false
	}
	if len(path) == 1 && !s.each {
		r.image(place, fields, s.key)
		return true
	}
	if !s.each {
		return r.walk(place.key(s.key), child, path[1:])
	}
	items, _ := child.([]any)
	for i, item := range items {
		at := place.key(s.key).item(i)
		if len(path) > 1 {
			found = r.walk(at, item, path[1:]) || found
			continue
		}
		text, ok := item.(string)
		if !ok {
			r.fail(invalid(at, "the image is not a text", "Quote it."))
			continue
		}
		r.taken[at] = true
		r.add(text, at)
		found = true
	}
	return found
}

// unusedFields fails for fields that no resource has: they are mistyped, or the image is missing.
func (r *reader) unusedFields() {
	for n, f := range r.options.Fields {
		if !r.used[n] {
			r.fail(InvalidInput(fmt.Sprintf("no resource has the field %s", f), "The kind and the keys are case-sensitive."))
		}
	}
}

// data are the kinds whose fields are never images: what they mean is not known.
var data = []string{"ConfigMap", "Secret", "CustomResourceDefinition"}

// skip notes the fields of a resource, at any depth, that look like images and have not been added. kind is that of the resource.
func (r *reader) skip(place Place, relative, kind string, value any) {
	switch v := mapping(value).(type) {
	case map[string]any:
		if own, ok := v["kind"].(string); ok && v["apiVersion"] != nil {
			kind, relative = own, ""
		}
		if slices.Contains(data, kind) {
			return
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below := key
			if relative != "" {
				below = relative + "." + key
			}
			r.skipOne(place.key(key), below, kind, key, v[key])
		}
	case []any:
		key := strings.TrimSuffix(relative[strings.LastIndexByte(relative, '.')+1:], "s")
		for i, item := range v {
			r.skipOne(place.item(i), relative+"[*]", kind, key, item)
		}
	}
}

// skipOne notes a text if it looks like an image, and continues in another value. key is the name of the field or of its items.
func (r *reader) skipOne(at Place, relative, kind, key string, value any) {
	text, ok := value.(string)
	if !ok {
		r.skip(at, relative, kind, value)
	} else if kind != "" && !r.taken[at] && looksLikeImage(key, text) {
		r.options.Skipped(Skipped{Place: at, Text: text, Field: kind + ":" + relative})
	}
}

// looksLikeImage reports whether a field is probably an image: by its name, and by its text. A text without a tag, a digest and a
// registry can be anything, such as the name of a disk.
func looksLikeImage(key, text string) bool {
	if key != "image" && !strings.HasSuffix(key, "Image") || !strings.ContainsAny(text, ":/@") || strings.Contains(text, "://") {
		return false
	}
	_, err := imagepin.ParseReference(text)
	return err == nil
}
