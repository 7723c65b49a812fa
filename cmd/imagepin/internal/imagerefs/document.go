package imagerefs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"go.yaml.in/yaml/v3"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// decoder decodes the documents of a file.
type decoder interface{ Decode(any) error }

// documents reads a file with documents in YAML or JSON.
func (r *reader) documents(name string, data []byte) {
	var d decoder = yaml.NewDecoder(bytes.NewReader(data))
	if isJSON(data) {
		d = json.NewDecoder(bytes.NewReader(data))
	}
	for n := 1; ; n++ {
		var document any
		err := d.Decode(&document)
		if errors.Is(err, io.EOF) {
			return
		}
		place := Place{File: name, Document: n}
		if err != nil {
			r.fail(notAManifest(place, data, err))
			return
		}
		r.document(place, document)
	}
}

// isJSON reports whether a file has only documents in JSON. YAML has more forms that begin with a brace, but a JSON text can
// have tabs, which YAML rejects.
func isJSON(data []byte) bool {
	if trimmed := bytes.TrimLeft(data, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' && trimmed[0] != '[' {
		return false
	}
	for d := json.NewDecoder(bytes.NewReader(data)); ; {
		var any json.RawMessage
		if err := d.Decode(&any); err != nil {
			return errors.Is(err, io.EOF)
		}
	}
}

func notAManifest(place Place, data []byte, err error) error {
	e := &imagepin.Error{
		Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument, Err: err,
		Message: place.document() + " is not YAML or JSON",
		Hint:    "Name only files with manifests, compose files and lists with -f.",
	}
	if bytes.Contains(data, []byte("{{")) {
		e.Message, e.Hint = place.document()+" is a template", templateHint
	}
	return e
}

// document finds the images of one document.
func (r *reader) document(place Place, document any) {
	switch v := mapping(document).(type) {
	case nil, []any:
	case map[string]any:
		if v["kind"] == "CustomResourceDefinition" {
			return // its schema can look like a pod spec
		}
		if version, _ := v["apiVersion"].(string); strings.HasPrefix(version, "kustomize.config.k8s.io/") {
			r.fail(kustomization(place.document(), "DIR"))
			return
		}
		if services, ok := mapping(v["services"]).(map[string]any); ok && v["apiVersion"] == nil {
			r.compose(place, services)
			return
		}
	default:
		r.fail(InvalidInput(place.document()+" is neither a manifest nor a list of references", "A list has one reference in each line, without spaces."))
		return
	}
	r.find(place, document)
	if r.options.Skipped != nil {
		r.skip(place, "", "", document)
	}
}

// find finds the pod specs in a value.
func (r *reader) find(place Place, value any) {
	switch v := mapping(value).(type) {
	case map[string]any:
		if v["kind"] == "CustomResourceDefinition" {
			return
		}
		r.podSpec(place, v)
		r.fields(place, v)
		for _, key := range slices.Sorted(maps.Keys(v)) {
			r.find(place.key(key), v[key])
		}
	case []any:
		for i, item := range v {
			r.find(place.item(i), item)
		}
	}
}

// podSpec adds the images of a pod spec. It does nothing if v is none.
func (r *reader) podSpec(place Place, v map[string]any) {
	if _, ok := v["containers"].([]any); !ok {
		return
	}
	for _, key := range []string{"containers", "initContainers", "ephemeralContainers"} {
		items, _ := v[key].([]any)
		for i, item := range items {
			r.image(place.key(key).item(i), item, "image")
		}
	}
	volumes, _ := v["volumes"].([]any)
	for i, volume := range volumes {
		if volume, ok := mapping(volume).(map[string]any); ok {
			r.image(place.key("volumes").item(i).key("image"), volume["image"], "reference")
		}
	}
}

// compose adds the images of a compose file.
func (r *reader) compose(place Place, services map[string]any) {
	place = place.key("services")
	for _, name := range slices.Sorted(maps.Keys(services)) {
		r.image(place.key(name), services[name], "image")
		service, _ := mapping(services[name]).(map[string]any)
		volumes, _ := service["volumes"].([]any)
		for i, volume := range volumes {
			if volume, ok := mapping(volume).(map[string]any); ok && volume["type"] == "image" {
				r.image(place.key(name).key("volumes").item(i), volume, "source")
			}
		}
	}
}

// image adds the image of a container, service or volume, if it has one.
func (r *reader) image(place Place, of any, key string) {
	fields, _ := mapping(of).(map[string]any)
	value, ok := fields[key]
	if !ok {
		return
	}
	place = place.key(key)
	r.taken[place] = true
	switch text := value.(type) {
	case nil:
		r.add("", place)
	case string:
		r.add(text, place)
	default:
		hint := "Quote it."
		if _, isMap := mapping(value).(map[string]any); isMap {
			hint = templateHint // {{ .Values.image }} without quotes is a mapping in YAML
		}
		r.fail(invalid(place, "the image is not a text", hint))
	}
}

func (p Place) key(key string) Place {
	if p.Path != "" {
		p.Path += "."
	}
	p.Path += key
	return p
}

func (p Place) item(i int) Place {
	p.Path += fmt.Sprintf("[%d]", i)
	return p
}

// mapping returns a mapping of YAML that has keys other than texts with all keys as texts, and other values unchanged.
func mapping(value any) any {
	m, ok := value.(map[any]any)
	if !ok {
		return value
	}
	texts := make(map[string]any, len(m))
	for key, value := range m {
		texts[fmt.Sprint(key)] = value
	}
	return texts
}
