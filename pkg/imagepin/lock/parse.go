package lock

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"go.yaml.in/yaml/v3"
	k8syaml "sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/internal/yamldoc"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Parse reads a lock in YAML or JSON. It fails with [imagepin.InvalidLock] (ErrInvalidArgument) if it is none, has an unknown
// field, an alias, an image without a digest, a reference with two digests, or no image, if there is another YAML document after it,
// or if it is over a limit.
//
// A YAML parser needs up to some hundred times the size of a text, and an alias repeats what it names. So Parse reads the images of
// a lock of more than [MaxImageSize] one by one. Such a lock has to be in JSON, or each image has to begin on a line of its own, with
// its other lines indented, as Marshal, kbld and imgpkg write it.
func Parse(data []byte) (*Lock, error) {
	if len(data) > MaxSize {
		return nil, invalid(nil, "%d bytes, a lock has at most %d", len(data), MaxSize)
	}
	p := &parser{}
	if len(data) <= MaxImageSize {
		return p.small(data)
	}
	return p.large(data)
}

// parser reads the images of a lock.
type parser struct {
	images      []Image
	annotations int
}

// small reads a lock in any form.
func (p *parser) small(data []byte) (*Lock, error) {
	images, head, err := parseHead(data)
	if err != nil {
		return nil, err
	}
	if err := head.check(len(images)); err != nil {
		return nil, err
	}
	for _, i := range images {
		if err := p.add(i); err != nil {
			return nil, err
		}
	}
	return New(p.images)
}

// large reads a lock whose images can be told apart without a YAML parser.
func (p *parser) large(data []byte) (*Lock, error) {
	parts, err := split(data)
	if err != nil {
		return nil, err
	}
	inline, head, err := parseHead(parts.rest)
	if err != nil {
		return nil, err
	}
	if err := head.check(parts.images + len(inline)); err != nil {
		return nil, err
	}
	if len(inline) > 0 {
		return nil, inOneLine()
	}
	for line, text := range parts.all() {
		if len(text) > MaxImageSize {
			return nil, invalid(nil, "images[%d] in line %d: more than %d bytes", len(p.images), line, MaxImageSize)
		}
		n, err := parsePart(text)
		if err != nil {
			return nil, invalid(err, "images[%d] in line %d: not a lock", len(p.images), line)
		}
		if parts.listed && n.Kind == yaml.SequenceNode && len(n.Content) == 1 {
			n = n.Content[0]
		}
		if err := p.add(n); err != nil {
			return nil, err
		}
	}
	return New(p.images)
}

// several returns the error of a lock with another document.
func several(err error) error {
	e := invalid(err, "a lock is one document")
	e.Hint = "Write one lock for all manifests: imagepin lock -f FILE -f FILE. A node also applies several files in locks_directory together."
	return e
}

// inOneLine returns the error of a large lock that has to be parsed at once.
func inOneLine() error {
	return invalid(nil, "it has more than %d bytes beside the images that begin on a line of their own below \"images:\", and it is not in JSON", MaxImageSize)
}

// head is a lock without its images.
type head struct{ apiVersion, kind string }

func (h head) check(images int) error {
	switch {
	case h.apiVersion != APIVersion || h.kind != Kind:
		return invalid(nil, "apiVersion %.80q and kind %.80q, want %s and %s", h.apiVersion, h.kind, APIVersion, Kind)
	case images == 0:
		return invalid(nil, "it has no images")
	case images > MaxImages:
		return invalid(nil, "%d images, a lock has at most %d", images, MaxImages)
	}
	return nil
}

// parseHead returns the images of a document, and the rest. It fails if there is another document.
func parseHead(text []byte) (images []*yaml.Node, h head, err error) {
	document, err := parseYAML(text)
	var fields map[string]*yaml.Node
	if err == nil {
		fields, err = fieldsOf(document, "apiVersion", "kind", "images")
	}
	if err == nil {
		h.apiVersion, err = textOf(fields["apiVersion"])
	}
	if err == nil {
		h.kind, err = textOf(fields["kind"])
	}
	switch list := fields["images"]; {
	case err != nil:
	case isNull(list):
	case list.Kind != yaml.SequenceNode:
		err = errorAt(list, "images is not a list")
	default:
		images = list.Content
	}
	if err != nil {
		return nil, h, invalid(err, "not a lock")
	}
	if err := yamldoc.Single(text); err != nil {
		return nil, h, several(err)
	}
	return images, h, nil
}

// add adds an image.
func (p *parser) add(n *yaml.Node) error {
	i, err := parseImage(n)
	if err != nil {
		return invalid(err, "images[%d]", len(p.images))
	}
	if p.annotations += len(i.Annotations); p.annotations > MaxAnnotations {
		return tooManyAnnotations()
	}
	p.images = append(p.images, i)
	return nil
}

func parseImage(n *yaml.Node) (Image, error) {
	fields, err := fieldsOf(n, "image", "annotations")
	if err != nil {
		return Image{}, err
	}
	text, err := textOf(fields["image"])
	if err != nil {
		return Image{}, err
	}
	ref, err := imagepin.ParseReference(text)
	if err != nil {
		return Image{}, err
	}
	canonical, ok := ref.(reference.Canonical)
	if !ok {
		return Image{}, fmt.Errorf("image %q has no digest", text)
	}
	i := Image{Ref: canonical}
	if i.Annotations, err = textsOf(fields["annotations"]); err != nil {
		return Image{}, err
	}
	if i.ID = i.Annotations[IDAnnotation]; i.ID != "" {
		if _, err := imagepin.ParseReference(i.ID); err != nil {
			return Image{}, fmt.Errorf("annotation %s: %w", IDAnnotation, err)
		}
	}
	if text, ok := i.Annotations[platformsAnnotation]; ok {
		if err := json.Unmarshal([]byte(text), &i.Platforms); err != nil {
			return Image{}, fmt.Errorf("annotation %s: %w", platformsAnnotation, err)
		}
		for platform, d := range i.Platforms {
			if err := d.Validate(); err != nil {
				return Image{}, fmt.Errorf("annotation %s: %.80q: %w", platformsAnnotation, platform, err)
			}
		}
	}
	delete(i.Annotations, IDAnnotation)
	delete(i.Annotations, platformsAnnotation)
	if len(i.Annotations) == 0 {
		i.Annotations = nil
	}
	return i, nil
}

// parseYAML returns the content of the first document.
func parseYAML(text []byte) (*yaml.Node, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if len(document.Content) == 0 {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}, nil
	}
	return document.Content[0], nil
}

// parsePart returns the content of a part of a lock. It fails if there is more than one document.
func parsePart(text []byte) (*yaml.Node, error) {
	d := yaml.NewDecoder(bytes.NewReader(text))
	var document, next yaml.Node
	if err := d.Decode(&document); err != nil {
		return nil, err
	}
	switch err := d.Decode(&next); {
	case err == nil:
		return nil, errorAt(&next, "there is another document")
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return document.Content[0], nil
}

// fieldsOf returns the fields of a mapping.
func fieldsOf(n *yaml.Node, known ...string) (map[string]*yaml.Node, error) {
	fields := make(map[string]*yaml.Node)
	err := eachMember(n, func(name string, at, value *yaml.Node) error {
		if !slices.Contains(known, name) {
			return errorAt(at, "unknown field %.80q", name)
		}
		if fields[name] != nil {
			return errorAt(at, "field %q is there twice", name)
		}
		fields[name] = value
		return nil
	})
	return fields, err
}

// textsOf returns a mapping of texts.
func textsOf(n *yaml.Node) (map[string]string, error) {
	texts := make(map[string]string)
	err := eachMember(n, func(name string, at, value *yaml.Node) error {
		if _, ok := texts[name]; ok {
			return errorAt(at, "%.80q is there twice", name)
		}
		text, err := textOf(value)
		texts[name] = text
		return err
	})
	return texts, err
}

// eachMember calls a function for each member of a mapping, with its name as a text and as a node.
func eachMember(n *yaml.Node, each func(name string, at, value *yaml.Node) error) error {
	switch {
	case isNull(n):
		return nil
	case n.Kind == yaml.AliasNode:
		return errAlias(n)
	case n.Kind != yaml.MappingNode:
		return errorAt(n, "it is not a mapping")
	}
	for at := 0; at+1 < len(n.Content); at += 2 {
		name := n.Content[at]
		if isNull(name) {
			return errorAt(name, "a name is null")
		}
		text, err := textOf(name)
		if err != nil {
			return err
		}
		if err := each(text, name, n.Content[at+1]); err != nil {
			return err
		}
	}
	return nil
}

// oldBools are the bools of YAML 1.1 that are texts in YAML 1.2.
var oldBools = []string{"y", "n", "yes", "no", "on", "off"}

// textOf returns a text. It is empty for null.
func textOf(n *yaml.Node) (string, error) {
	switch {
	case isNull(n):
		return "", nil
	case n.Kind == yaml.AliasNode:
		return "", errAlias(n)
	case n.Kind != yaml.ScalarNode:
		return "", errorAt(n, "it is not a text")
	}
	const plain = 0
	switch tag := n.ShortTag(); {
	case n.Style == plain && (tag == "!!int" || tag == "!!float" || tag == "!!bool" || slices.Contains(oldBools, strings.ToLower(n.Value))):
		// The text of a number or a bool without quotes is that of kbld and imgpkg.
		var text string
		if err := k8syaml.Unmarshal([]byte(n.Value), &text); err == nil {
			return text, nil
		}
	case tag == "!!str" || tag == "!!timestamp": // a timestamp without quotes is a text in JSON
		return n.Value, nil
	}
	return "", errorAt(n, "%.80q is not a text: quote it", n.Value)
}

func isNull(n *yaml.Node) bool {
	return n == nil || n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}

func errorAt(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: "+format, append([]any{n.Line}, args...)...)
}

func errAlias(n *yaml.Node) error {
	return errorAt(n, "a lock has no aliases, write the text again")
}
