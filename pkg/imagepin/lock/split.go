package lock

import (
	"bytes"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/imagepin/imagepin/internal/jsontext"
)

// parts are the parts of a large lock.
type parts struct {
	// rest is the lock without its images.
	rest []byte
	// images is the number of images.
	images int
	// all returns the images, each as a document of its own, with the line in which it begins.
	all func() iter.Seq2[int, []byte]
	// listed reports that each of these documents is a list of one image.
	listed bool
}

// split splits a lock in JSON, or one in YAML in which each image begins on a line of its own.
func split(data []byte) (*parts, error) {
	text := bytes.TrimPrefix(data, []byte("\ufeff"))
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		return splitJSON(text)
	}
	return splitYAML(text)
}

func splitJSON(text []byte) (*parts, error) {
	var none struct{}
	if err := json.Unmarshal(text, &none); err != nil {
		return nil, invalid(err, "not a lock in JSON")
	}
	p := &parts{rest: []byte("{")}
	var images []byte
	for name, value := range jsontext.Members(text) {
		if string(name) == `"images"` && len(value) > 0 && value[0] == '[' && images == nil {
			images, value = value, []byte("null")
		}
		if len(p.rest)+len(name)+len(value) > MaxImageSize {
			return nil, invalid(nil, "it has more than %d bytes beside its images", MaxImageSize)
		}
		if len(p.rest) > 1 {
			p.rest = append(p.rest, ',')
		}
		p.rest = append(append(append(p.rest, name...), ": "...), value...)
	}
	p.rest = append(p.rest, '}')
	p.all = func() iter.Seq2[int, []byte] {
		return func(yield func(int, []byte) bool) {
			line, counted := 1, text
			for element := range jsontext.Elements(images) {
				before := cap(counted) - cap(element) // both end where text does
				line += bytes.Count(counted[:before], []byte("\n"))
				if counted = counted[before:]; !yield(line, element) {
					return
				}
			}
		}
	}
	for range p.all() {
		p.images++
	}
	return p, nil
}

// splitYAML splits a lock by its lines: an image begins with a dash in the column of the first one.
func splitYAML(text []byte) (*parts, error) {
	p := &parts{listed: true}
	for l := range lines(text) {
		switch {
		case l.image && l.first:
			p.images++
		case l.image:
		case l.second:
			return nil, several(fmt.Errorf("it has several documents, and the second begins in line %d", l.number))
		case len(p.rest)+len(l.text) > MaxImageSize:
			return nil, inOneLine()
		default:
			p.rest = append(p.rest, l.text...)
		}
	}
	p.all = func() iter.Seq2[int, []byte] {
		return func(yield func(int, []byte) bool) {
			var image []byte
			begins := 0
			for l := range lines(text) {
				switch {
				case !l.image:
				case l.first:
					if begins > 0 && !yield(begins, image) {
						return
					}
					begins, image = l.number, l.text
				default:
					image = text[l.at-len(image) : l.at+len(l.text)]
				}
			}
			if begins > 0 {
				yield(begins, image)
			}
		}
	}
	return p, nil
}

// line is a line of a lock in YAML.
type line struct {
	number, at int
	text       []byte
	// image reports that it belongs to an image, and first that it is the first line of it.
	image, first bool
	// second reports that it belongs to a second document.
	second bool
}

// lines returns the lines of a lock in YAML.
func lines(text []byte) iter.Seq[line] {
	return func(yield func(line) bool) {
		var content, ended, inImages bool
		column := -1 // of the dash of the first image
		for l := (line{number: 1}); l.at < len(text); l = (line{number: l.number + 1, at: l.at + len(l.text)}) {
			l.text = text[l.at:]
			if end := bytes.IndexByte(l.text, '\n'); end >= 0 {
				l.text = l.text[:end+1]
			}
			trimmed := bytes.TrimLeft(l.text, " ")
			indent := len(l.text) - len(trimmed)
			trimmed = bytes.TrimSpace(trimmed)
			isDash := bytes.HasPrefix(trimmed, []byte("- ")) || string(trimmed) == "-"
			switch {
			case indent == 0 && isMarker(l.text):
				ended, inImages = content, false
				if rest := bytes.TrimSpace(l.text[len("---"):]); len(rest) > 0 && rest[0] != '#' {
					l.second, content = ended, true
				}
			case len(trimmed) == 0 || trimmed[0] == '#':
				l.image = inImages && column >= 0
			case ended:
				l.second = true
			case inImages && column < 0 && isDash:
				column, l.image, l.first = indent, true, true
			case inImages && indent == column && isDash:
				l.image, l.first = true, true
			case inImages && column >= 0 && indent > 0: // one with a smaller indent than the dash is refused with its image
				l.image = true
			case !content && l.text[0] == '%': // a directive, or no YAML
			default:
				content = true
				if inImages = isImages(l.text); inImages {
					column = -1
				}
			}
			if !yield(l) {
				return
			}
		}
	}
}

// isMarker reports whether a line begins or ends a document.
func isMarker(text []byte) bool {
	return (bytes.HasPrefix(text, []byte("---")) || bytes.HasPrefix(text, []byte("..."))) &&
		(len(text) == len("---") || bytes.IndexByte([]byte(" \t\r\n"), text[len("---")]) >= 0)
}

// isImages reports whether a line is the field of the images, without a value.
func isImages(text []byte) bool {
	for _, field := range []string{"images:", `"images":`, "'images':"} {
		if rest, ok := bytes.CutPrefix(text, []byte(field)); ok {
			rest = bytes.TrimSpace(rest)
			return len(rest) == 0 || rest[0] == '#'
		}
	}
	return false
}
