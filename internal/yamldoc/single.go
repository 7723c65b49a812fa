// Package yamldoc checks how many documents a file in YAML or JSON has. A decoder that is called once reads only the first.
package yamldoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"go.yaml.in/yaml/v3"
)

// Single fails if data has content after its first document in YAML or JSON. Documents that have only comments are no content.
func Single(data []byte) error {
	if !canHaveMore(data) {
		return nil
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	for n := 1; ; n++ {
		var document yaml.Node
		err := d.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && n > 1:
			return fmt.Errorf("after document %d: %w", n-1, err)
		case err != nil:
			return err
		case n > 1 && !isEmpty(&document):
			return fmt.Errorf("it has several documents, and the second begins in line %d", document.Content[0].Line)
		}
	}
}

// canHaveMore reports whether there can be content after the first document. It is cheaper than to parse data again: only a
// marker begins another document or ends one, and only braces, brackets, quotes and what is indented can end before the end of the
// file without one.
func canHaveMore(data []byte) bool {
	begin := bytes.TrimLeft(bytes.TrimPrefix(data, []byte("\ufeff")), "\r\n")
	text := bytes.TrimSpace(begin)
	text, marked := bytes.CutPrefix(text, []byte("---"))
	if bytes.Contains(text, []byte("---")) || bytes.Contains(text, []byte("...")) {
		return true
	}
	if marked {
		begin = bytes.TrimLeft(text, "\r\n")
	}
	text = bytes.TrimSpace(text)
	if len(text) > 0 && begin[0] != text[0] && !json.Valid(text) {
		return true
	}
	return len(text) > 0 && bytes.IndexByte([]byte(`{["'&!#%`), text[0]) >= 0 && !json.Valid(text)
}

func isEmpty(document *yaml.Node) bool {
	if len(document.Content) == 0 {
		return true
	}
	n := document.Content[0]
	return n.Kind == yaml.ScalarNode && n.Tag == "!!null" && n.Value == ""
}
