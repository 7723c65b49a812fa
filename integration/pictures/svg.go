package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// All text has a monospace font of the system, whose characters are at most advance times the size wide.
const (
	font    = `ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace`
	advance = 0.61
)

// colors are the classes of the pictures, for light and dark mode. The background belongs to the picture, so that it can
// be read on pages of any color.
const colors = `
.page{fill:#fff;stroke:#d1d9e0}.box{fill:#f6f8fa;stroke:#8c959f}.text{fill:#1f2328}.dim{fill:#59636e}
.good{fill:#1a7f37}.bad{fill:#cf222e}.goodbox{fill:#dafbe1;stroke:#1a7f37}.badbox{fill:#ffebe9;stroke:#cf222e}
.goodmark{fill:none;stroke:#1a7f37;stroke-width:2}.badmark{fill:none;stroke:#cf222e;stroke-width:2}
.askbox{fill:#ddf4ff;stroke:#0969da}.line{stroke:#59636e;fill:none}.head{fill:#59636e}
@media(prefers-color-scheme:dark){
.page{fill:#0d1117;stroke:#3d444d}.box{fill:#151b23;stroke:#6e7681}.text{fill:#f0f6fc}.dim{fill:#9198a1}
.good{fill:#3fb950}.bad{fill:#ff7b72}.goodbox{fill:#12261e;stroke:#3fb950}.badbox{fill:#2d1519;stroke:#ff7b72}
.goodmark{stroke:#3fb950}.badmark{stroke:#ff7b72}
.askbox{fill:#121d2f;stroke:#4493f8}.line{stroke:#9198a1;fill:none}.head{fill:#9198a1}}
`

// svg is a picture that is drawn.
type svg struct {
	body   bytes.Buffer
	texts  []placed
	lines  [][2]point // between boxes
	width  float64
	height float64
	page   bool // it has a background
}

type point struct{ x, y float64 }

// placed is a text with the width that it has at most.
type placed struct {
	text        string
	x, y, limit float64
	size        float64
}

func (t placed) width() float64 { return float64(utf8.RuneCountInString(t.text)) * t.size * advance }

func (s *svg) add(format string, args ...any) { fmt.Fprintf(&s.body, format+"\n", args...) }

// text adds a line of text that begins at x and must end before limit.
func (s *svg) text(x, y, size, limit float64, class, text string) {
	s.texts = append(s.texts, placed{text, x, y, limit, size})
	s.add(`<text x="%s" y="%s" font-size="%s" class="%s">%s</text>`, n(x), n(y), n(size), class, escape(text))
}

func (s *svg) rect(x, y, w, h float64, class string) {
	s.add(`<rect x="%s" y="%s" width="%s" height="%s" rx="6" class="%s"/>`, n(x), n(y), n(w), n(h), class)
}

// mark adds a check mark or a cross, as lines, because not every font has them.
func (s *svg) mark(x, y float64, good bool) {
	if good {
		s.add(`<path d="M%s %sl3 4 6-8" class="goodmark"/>`, n(x), n(y-4))
		return
	}
	s.add(`<path d="M%s %sl8 8m0-8l-8 8" class="badmark"/>`, n(x), n(y-8))
}

// finish returns the file. The description is for readers who do not see the picture.
func (s *svg) finish(title, description, style string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="t d">`+"\n",
		n(s.width), n(s.height), n(s.width), n(s.height))
	fmt.Fprintf(&b, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", escape(title), escape(description))
	fmt.Fprintf(&b, "<style>text{font-family:%s;white-space:pre}%s</style>\n", font, style)
	if s.page {
		fmt.Fprintf(&b, `<rect x="0.5" y="0.5" width="%s" height="%s" rx="6" class="page"/>`+"\n", n(s.width-1), n(s.height-1))
	}
	b.Write(s.body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// n formats a coordinate.
func n(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.1f", v), "0"), ".")
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder does not fail
	return b.String()
}

// wrap breaks a text between words into lines of at most a number of characters. Longer words are broken.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		for utf8.RuneCountInString(word) > width {
			if line != "" {
				lines, line = append(lines, line), ""
			}
			r := []rune(word)
			lines, word = append(lines, string(r[:width])), string(r[width:])
		}
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

// chars returns how many characters of a size fit into a width.
func chars(width, size float64) int { return int(width / (size * advance)) }
