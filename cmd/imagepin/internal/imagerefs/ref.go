package imagerefs

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Ref is a reference and the place where it was found.
type Ref struct {
	// Text is the reference as it is written.
	Text string
	// Named is Text, normalized.
	Named reference.Named
	// Place is the first place where it was found.
	Place Place
}

// Place is a place in an input.
type Place struct {
	File string // "-" is standard input
	// Document is the number of the document in the file, from 1 on; 0 for a plain list.
	Document int
	// Path is the path in the document, such as spec.containers[0].image; in a plain list it is the line. It
	// may be empty.
	Path string
}

// String returns the place in the form of messages.
func (p Place) String() string {
	switch {
	case p.Path == "":
		return p.file()
	case p.Document == 0:
		return p.file() + ", " + p.Path
	}
	return p.document() + ", " + p.Path
}

func (p Place) file() string {
	if p.File == Stdin {
		return "standard input"
	}
	return p.File
}

// document returns the place without the path.
func (p Place) document() string { return fmt.Sprintf("%s, document %d", p.file(), p.Document) }

// Parse returns the reference in text. It fails with [imagepin.InvalidReference] (ErrInvalidArgument).
func Parse(text string, place Place) (Ref, error) {
	hint := ""
	switch {
	case text == "":
		return Ref{}, invalid(place, "the image is empty", "Set the image, or remove the key.")
	case strings.Contains(text, "{{"):
		return Ref{}, invalid(place, fmt.Sprintf("%q is a template", imagepin.Bound(text, maxText)), templateHint)
	case strings.Contains(text, "$"):
		return Ref{}, invalid(place, fmt.Sprintf("%q has a variable", imagepin.Bound(text, maxText)), variableHint)
	case strings.TrimSpace(text) != text:
		hint = "Remove the space around the reference."
	}
	named, err := imagepin.ParseReference(text)
	if err != nil {
		return Ref{}, &imagepin.Error{
			Reason: imagepin.InvalidReference, Class: errdefs.ErrInvalidArgument, Hint: hint,
			Message: fmt.Sprintf("%s: %q: %v", place, imagepin.Bound(text, maxText), cause(err)),
		}
	}
	return Ref{Text: text, Named: named, Place: place}, nil
}

// cause returns the reason of an invalid reference, without the reference.
func cause(err error) error {
	if e, ok := err.(*imagepin.Error); ok && e.Err != nil {
		return e.Err
	}
	return err
}

const (
	// maxText is the maximum length, in bytes, of a text of an input in an error.
	maxText      = 256
	templateHint = "Render it first: helm template CHART | imagepin lock -f -"
	variableHint = "Replace variables first: docker compose config | imagepin lock -f -"
)

// InvalidInput returns an [imagepin.InvalidRequest] error (ErrInvalidArgument).
func InvalidInput(message, hint string) error {
	return &imagepin.Error{Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument, Message: message, Hint: hint}
}

func invalid(place Place, message, hint string) error {
	return &imagepin.Error{
		Reason: imagepin.InvalidReference, Class: errdefs.ErrInvalidArgument, Hint: hint, Message: fmt.Sprintf("%s: %s", place, message),
	}
}
