// Package svg draws the pictures of the documents: with the fonts of the system, for light and dark pages.
package svg

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"strings"
	"unicode/utf8"
)

// font is a monospace font of the system, which all text has.
const font = `ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace`

// Advance is how wide a character is at most, as a part of the size of its text.
const Advance = 0.61

// Colors are the classes of the pictures, for light and dark mode. The background belongs to the picture, so that it can
// be read on pages of any color.
const Colors = `
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

// Picture is a picture that is drawn.
type Picture struct {
	// Width and Height are the size. Page reports that it has a background.
	Width, Height float64
	Page          bool
	// Lines are those between boxes.
	Lines [][2]Point
	// Texts are all texts, with their places.
	Texts []Text

	body bytes.Buffer
}

// Point is a place.
type Point struct{ X, Y float64 }

// Text is a text that must end before Limit.
type Text struct {
	Text        string
	X, Y, Limit float64
	Size        float64
}

// Width returns the width of the text at most.
func (t Text) Width() float64 { return Width(t.Text, t.Size) }

// Width returns the width of a text of a size at most.
func Width(text string, size float64) float64 {
	return float64(utf8.RuneCountInString(text)) * size * Advance
}

// Add adds an element.
func (p *Picture) Add(format string, args ...any) { fmt.Fprintf(&p.body, format+"\n", args...) }

// Text adds a line of text that begins at x and must end before limit.
func (p *Picture) Text(x, y, size, limit float64, class, text string) {
	p.Texts = append(p.Texts, Text{text, x, y, limit, size})
	p.Add(`<text x="%s" y="%s" font-size="%s" class="%s">%s</text>`, N(x), N(y), N(size), class, Escape(text))
}

// Rect adds a rectangle with round corners.
func (p *Picture) Rect(x, y, w, h float64, class string) {
	p.Add(`<rect x="%s" y="%s" width="%s" height="%s" rx="6" class="%s"/>`, N(x), N(y), N(w), N(h), class)
}

// Mark adds a check mark or a cross, as lines, because not every font has them.
func (p *Picture) Mark(x, y float64, good bool) {
	if good {
		p.Add(`<path d="M%s %sl3 4 6-8" class="goodmark"/>`, N(x), N(y-4))
		return
	}
	p.Add(`<path d="M%s %sl8 8m0-8l-8 8" class="badmark"/>`, N(x), N(y-8))
}

// Finish returns the file. The description is for readers who do not see the picture.
func (p *Picture) Finish(title, description, style string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" viewBox="0 0 %s %s" width="%s" height="%s" role="img" aria-labelledby="t d">`+"\n",
		N(p.Width), N(p.Height), N(p.Width), N(p.Height))
	fmt.Fprintf(&b, "<title id=\"t\">%s</title>\n<desc id=\"d\">%s</desc>\n", Escape(title), Escape(description))
	fmt.Fprintf(&b, "<style>text{font-family:%s;white-space:pre}%s</style>\n", font, style)
	if p.Page {
		fmt.Fprintf(&b, `<rect x="0.5" y="0.5" width="%s" height="%s" rx="6" class="page"/>`+"\n", N(p.Width-1), N(p.Height-1))
	}
	b.Write(p.body.Bytes())
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// N formats a coordinate.
func N(v float64) string {
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.1f", v), "0"), ".")
}

// Escape returns a text as the content of an element.
func Escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a builder does not fail
	return b.String()
}

// Wrap breaks a text between words into lines of at most a number of characters. Longer words are broken.
func Wrap(text string, width int) []string {
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

// Chars returns how many characters of a size fit into a width.
func Chars(width, size float64) int { return int(width / (size * Advance)) }

// Misplaced describes the texts that are cut or overlap.
func (p *Picture) Misplaced() []string {
	var out []string
	for i, a := range p.Texts {
		if a.X+a.Width() > a.Limit || a.X < 0 || a.Limit > p.Width {
			out = append(out, fmt.Sprintf("%q ends at %.0f, its place at %.0f", a.Text, a.X+a.Width(), a.Limit))
		}
		for _, b := range p.Texts[i+1:] {
			if a.X < b.X+b.Width() && b.X < a.X+a.Width() && a.Y-a.Size*0.8 < b.Y && b.Y-b.Size*0.8 < a.Y {
				out = append(out, fmt.Sprintf("%q overlaps %q", a.Text, b.Text))
			}
		}
	}
	return out
}
