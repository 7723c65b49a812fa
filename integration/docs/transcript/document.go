// Package transcript reads the commands and outputs that documents show, and compares them with those of a real run.
//
// A document marks what belongs together with HTML comments, which a reader does not see:
//
//	<!-- session: NAME -->      starts a session with a new environment, for example a node
//	<!-- step: NAME ARGS -->    does something that the document does not show as a command
//	<!-- output: NAME ARGS -->  the next block is the output of a step, for example an error that a pod gets
//	<!-- not run: REASON -->    the next block is not run
//
// Blocks with commands are fenced as "console": a line with "$ " is a command, the lines after it are its output. "…"
// in an output stands for the rest of a digest, a line with "[...]" for any lines.
package transcript

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Kind is the kind of an [Item].
type Kind string

// The kinds of items.
const (
	Session Kind = "session"
	Step    Kind = "step"
	Output  Kind = "output"
	NotRun  Kind = "not run"
	Command Kind = "command"
)

// Item is one directive or command of a document.
type Item struct {
	Kind Kind
	// Text is the name and the arguments of a directive, or the command without "$ ".
	Text string
	// Want is the output that the document shows for a command or an [Output], without the indentation of its block.
	Want string
	// Line is the number of the line in the document, from 1. first and end are the lines of Want, from 0; end is not
	// included.
	Line       int
	first, end int
}

// Document is a document with its items.
type Document struct {
	Path  string
	Items []Item
	lines []string
}

// Read reads a document. A block with commands outside of a session, or a directive without its block, is an error.
func Read(path string) (*Document, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &Document{Path: path, lines: strings.SplitAfter(string(b), "\n")}
	p := parser{Document: d}
	for n := 0; n < len(d.lines); {
		next, err := p.line(n)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n+1, err)
		}
		n = next
	}
	if p.pending != nil {
		return nil, fmt.Errorf("%s:%d: there is no block after this directive", path, p.pending.Line)
	}
	return d, nil
}

// Sessions returns the items of each session. Each begins with an item of kind [Session].
func (d *Document) Sessions() [][]Item {
	var sessions [][]Item
	for _, i := range d.Items {
		if i.Kind == Session {
			sessions = append(sessions, nil)
		}
		if last := len(sessions) - 1; last >= 0 {
			sessions[last] = append(sessions[last], i)
		}
	}
	return sessions
}

type parser struct {
	*Document
	session bool
	pending *Item // a directive about the next block
}

var (
	directive = regexp.MustCompile(`^\s*<!-- (session|step|output|not run): (.+) -->\s*$`)
	indented  = regexp.MustCompile(`^( {4}|\t)\s*\$ `)
)

// line parses the line n, with the block that begins there. It returns the number of the next line.
func (p *parser) line(n int) (next int, _ error) {
	text := p.lines[n]
	if m := directive.FindStringSubmatch(text); m != nil {
		return n + 1, p.directive(Item{Kind: Kind(m[1]), Text: strings.TrimSpace(m[2]), Line: n + 1})
	}
	if indented.MatchString(text) {
		return 0, fmt.Errorf("a command in an indented block: use a block with ```console")
	}
	fence, ok := strings.CutPrefix(strings.TrimSpace(text), "```")
	if !ok {
		return n + 1, nil
	}
	end := n + 1
	for end < len(p.lines) && strings.TrimSpace(p.lines[end]) != "```" {
		end++
	}
	return end + 1, p.block(fence, n+1, end)
}

func (p *parser) directive(i Item) error {
	if p.pending != nil {
		return fmt.Errorf("there is no block after the directive %q", p.pending.Kind)
	}
	if i.Kind == Session {
		p.session = true
	}
	if i.Kind == Output || i.Kind == NotRun {
		p.pending = &i
	}
	if i.Kind != Output {
		p.Items = append(p.Items, i)
	}
	return nil
}

func (p *parser) block(fence string, first, end int) error {
	pending := p.pending
	p.pending = nil
	fenced := p.lines[first-1]
	indent := fenced[:len(fenced)-len(strings.TrimLeft(fenced, " "))]
	switch {
	case pending != nil && pending.Kind == NotRun:
		return nil
	case pending != nil:
		pending.first, pending.end = first, end
		for _, line := range p.lines[first:end] {
			pending.Want += strings.TrimPrefix(line, indent)
		}
		p.Items = append(p.Items, *pending)
		return nil
	case fence != "console":
		return nil
	case !p.session:
		return fmt.Errorf("commands that no session runs")
	}
	for n := first; n < end; n++ {
		if text, ok := strings.CutPrefix(strings.TrimLeft(p.lines[n], " "), "$ "); ok {
			p.Items = append(p.Items, Item{Kind: Command, Text: strings.TrimSpace(text), Line: n + 1, first: n + 1, end: n + 1})
			continue
		}
		if n == first {
			return fmt.Errorf("a block of commands must begin with a command")
		}
		last := &p.Items[len(p.Items)-1]
		last.Want += strings.TrimPrefix(p.lines[n], indent)
		last.end = n + 1
	}
	return nil
}
