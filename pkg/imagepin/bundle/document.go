package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/jsontext"
)

// document has the fields of an index or a manifest that a bundle needs. Its lists are parts of the text, so that it takes no more
// memory.
type document struct {
	mediaType string
	config    ocispec.Descriptor
	hasConfig bool
	fsLayers  bool
	layers    list
	manifests list
}

// parse reads an index or a manifest. It must be what its descriptor says. The document refers to data.
func parse(d ocispec.Descriptor, data []byte) (*document, error) {
	doc, err := parseDocument(data)
	if err != nil {
		return nil, fmt.Errorf("%s (%s): %w", d.Digest, d.MediaType, err)
	}
	if doc.mediaType != "" && doc.mediaType != d.MediaType {
		return nil, fmt.Errorf("%s has the media type %.80q, but its descriptor %.80q", d.Digest, doc.mediaType, d.MediaType)
	}
	isIndex := images.IsIndexType(d.MediaType)
	if isIndex && (doc.hasConfig || doc.layers.number > 0 || doc.fsLayers) || !isIndex && doc.manifests.number > 0 {
		return nil, fmt.Errorf("%s is not what its descriptor says, %.80q", d.Digest, d.MediaType)
	}
	return doc, nil
}

func parseDocument(data []byte) (*document, error) {
	var object struct{}
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, err
	}
	// What containerd reads, with annotations, needs many times the memory of a short text.
	if n := bytes.Count(data, []byte(`"`)) / 2; n > maxStrings {
		return nil, fmt.Errorf("it has %d texts, an index or a manifest has at most %d", n, maxStrings)
	}
	doc := &document{}
	for quoted, value := range jsontext.Members(data) {
		if err := doc.set(fieldName(quoted), value); err != nil {
			return nil, err
		}
	}
	return doc, nil
}

// fieldNames are the fields of a document.
var fieldNames = []string{"mediaType", "config", "layers", "manifests", "fsLayers"}

// fieldName returns the field that encoding/json takes a name for, which can be escaped and in other case, or an empty text.
func fieldName(quoted []byte) string {
	const longest = 2 + len("manifests")*len(`\u0000`)
	if len(quoted) > longest {
		return ""
	}
	var name string
	if json.Unmarshal(quoted, &name) != nil {
		return ""
	}
	for _, field := range fieldNames {
		if strings.EqualFold(name, field) {
			return field
		}
	}
	return ""
}

func (doc *document) set(name string, value []byte) (err error) {
	switch name {
	case "mediaType":
		if err := json.Unmarshal(value, &doc.mediaType); err != nil {
			return err
		}
		if len(doc.mediaType) > maxText {
			return fmt.Errorf("its media type has %d bytes, the limit is %d", len(doc.mediaType), maxText)
		}
	case "config":
		doc.hasConfig = true
		doc.config, err = parseDescriptor(value)
	case "layers":
		doc.layers, err = newList(value)
	case "manifests":
		doc.manifests, err = newList(value)
	case "fsLayers":
		doc.fsLayers = true
	}
	return err
}

// list is a list of descriptors in a text.
type list struct {
	text   []byte
	number int
}

func newList(text []byte) (list, error) {
	l := list{text: text}
	switch {
	case text[0] == 'n': // null
		return list{}, nil
	case text[0] != '[':
		return list{}, errors.New("it has another value where a list is expected")
	}
	for range jsontext.Elements(text) {
		l.number++
	}
	if l.number > maxListedIn {
		return list{}, fmt.Errorf("it lists %d blobs, an index or a manifest lists at most %d", l.number, maxListedIn)
	}
	return l, nil
}

// each calls a function for each descriptor of a list, which it has checked.
func (l list) each(do func(ocispec.Descriptor) error) error {
	for element := range jsontext.Elements(l.text) {
		d, err := parseDescriptor(element)
		if err != nil {
			return err
		}
		if err := checkDescriptor(d); err != nil {
			return err
		}
		if err := do(d); err != nil {
			return err
		}
	}
	return nil
}

// parseDescriptor returns a descriptor without what a bundle does not need.
func parseDescriptor(text []byte) (ocispec.Descriptor, error) {
	var fields struct {
		MediaType    string        `json:"mediaType"`
		ArtifactType string        `json:"artifactType"`
		Digest       digest.Digest `json:"digest"`
		Size         int64         `json:"size"`
		Platform     *struct {
			Architecture string   `json:"architecture"`
			OS           string   `json:"os"`
			OSVersion    string   `json:"os.version"`
			OSFeatures   features `json:"os.features"`
			Variant      string   `json:"variant"`
		} `json:"platform"`
	}
	if err := json.Unmarshal(text, &fields); err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: fields.MediaType, ArtifactType: fields.ArtifactType, Digest: fields.Digest, Size: fields.Size}
	all := []string{d.MediaType, d.ArtifactType}
	if p := fields.Platform; p != nil {
		all = append(all, p.Architecture, p.OS, p.OSVersion, p.Variant)
		d.Platform = &ocispec.Platform{Architecture: p.Architecture, OS: p.OS, OSVersion: p.OSVersion, OSFeatures: p.OSFeatures, Variant: p.Variant}
	}
	for _, text := range all {
		if len(text) > maxText {
			return ocispec.Descriptor{}, fmt.Errorf("a text of a descriptor has %d bytes, the limit is %d: %.80q", len(text), maxText, text)
		}
	}
	return d, nil
}

// features are the features of an operating system.
type features []string

// UnmarshalJSON implements json.Unmarshaler.
func (f *features) UnmarshalJSON(text []byte) (err error) {
	if *f, err = shortTexts(text, maxFeatures); err != nil {
		return fmt.Errorf("os.features: %w", err)
	}
	return nil
}

// shortTexts returns a list of texts.
func shortTexts(list []byte, limit int) ([]string, error) {
	if list[0] != '[' && list[0] != 'n' {
		return nil, errors.New("a list of texts is not a list")
	}
	var all []string
	for element := range jsontext.Elements(list) {
		if len(all) == limit {
			return nil, fmt.Errorf("a list of texts has more than %d", limit)
		}
		var one string
		if err := json.Unmarshal(element, &one); err != nil {
			return nil, err
		}
		if len(one) > maxText {
			return nil, fmt.Errorf("a text has %d bytes, the limit is %d: %.80q", len(one), maxText, one)
		}
		all = append(all, one)
	}
	return all, nil
}
