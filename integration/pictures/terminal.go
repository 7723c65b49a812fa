package main

import (
	"fmt"
	"strings"

	"github.com/imagepin/imagepin/integration/svg"
)

// The screen of a recording. Its colors are those of a dark terminal in both modes.
const (
	screen = `.bg{fill:#0d1117;stroke:#6e7681}.bar{fill:#21262d}.o{fill:#e6edf3}.h{fill:#79c0ff;font-weight:bold}
.c{fill:#ffffff;font-weight:bold}.e{fill:#ff7b72}.g{fill:#56d364}.d{fill:#9198a1}`
	termSize   = 13.0
	termLine   = 17.0
	termMargin = 16.0
	termBar    = 28.0
	pause      = 4.0 // seconds that the picture waits after each step, so that it can be read
	last       = 10.0
)

// class returns the color of a line of the demo.
func class(line string) string {
	switch {
	case strings.HasPrefix(line, "$ "):
		return "c"
	case stepLine.MatchString(line):
		return "h"
	case strings.Contains(line, " passed all "):
		return "g"
	case strings.Contains(line, " ! ") || strings.HasSuffix(line, " !") || noteLine.MatchString(line) ||
		strings.HasPrefix(line, "   - step") || strings.Contains(line, "failed these checks"):
		return "e"
	case strings.HasPrefix(line, "   HANDLER") || strings.Contains(line, "HEAD OF A TAG"):
		return "d"
	}
	return "o"
}

// shows returns when each line is shown, in seconds. It is the time of the recording, with a pause before each step.
func (c *cast) shows() []float64 {
	at := make([]float64, len(c.events))
	waited := 0.0
	for i, v := range c.events {
		if i > 2 && (stepLine.MatchString(v.line) || strings.HasPrefix(v.line, "Result after")) {
			waited += pause
		}
		at[i] = v.at + waited
	}
	return at
}

// drawTerminal draws a recording as a terminal that scrolls. Readers who prefer reduced motion see the last screen.
func drawTerminal(c *cast) []byte {
	return layTerminal(c).Finish(c.header.Title, "Recording of "+c.header.Title+". docs/demo.md has the output as text.", screen+c.animation())
}

func layTerminal(c *cast) *svg.Picture {
	width := 2*termMargin + float64(c.widest())*termSize*svg.Advance
	view := rows * termLine
	s := &svg.Picture{Width: width + 2, Height: termBar + view + termMargin + 2}
	s.Add(`<rect x="1" y="1" width="%s" height="%s" rx="8" class="bg"/>`, svg.N(width), svg.N(s.Height-2))
	s.Add(`<path d="M1 %sV9a8 8 0 0 1 8-8H%sa8 8 0 0 1 8 8V%sz" class="bar"/>`, svg.N(termBar), svg.N(width-7), svg.N(termBar))
	s.Text(termMargin, 19, 12, width-termMargin, "d", c.header.Title)
	s.Add(`<svg x="0" y="%s" width="%s" height="%s"><g class="s">`, svg.N(termBar+termMargin/2), svg.N(width), svg.N(view))
	for i, v := range c.events {
		if v.line != "" {
			s.Text(termMargin, float64(i)*termLine+13, termSize, width, class(v.line), v.line)
		}
	}
	s.Add(`</g><rect x="2" width="%s" height="%s" class="later"/></svg>`, svg.N(width-2), svg.N(view))
	return s
}

// animation returns the style of the animation: the lines scroll, and a box covers those that are not shown yet.
func (c *cast) animation() string {
	at := c.shows()
	total := at[len(at)-1] + last
	var scroll, cover strings.Builder
	previous := -1.0
	for i, t := range at {
		percent := 100 * t / total
		if final := i+1 == len(at); !final && at[i+1]-t < 0.02 { // shown with the next line
			continue
		}
		if previous < 0 {
			percent = 0
		}
		previous = percent
		fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%spx)}", percent, svg.N(-termLine*float64(max(0, i+1-rows))))
		fmt.Fprintf(&cover, "%.2f%%{transform:translateY(%spx)}", percent, svg.N(termLine*float64(min(i+1, rows))))
	}
	end := -termLine * float64(max(0, len(at)-rows))
	return fmt.Sprintf(`
.later{fill:#0d1117;transform:translateY(%spx);animation:l %.1fs step-end infinite}
.s{transform:translateY(%spx);animation:s %.1fs step-end infinite}
@keyframes s{%s}
@keyframes l{%s}
@media(prefers-reduced-motion:reduce){.s,.later{animation:none}}
`, svg.N(termLine*rows), total, svg.N(end), total, scroll.String(), cover.String())
}
