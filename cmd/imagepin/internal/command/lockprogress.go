package command

import (
	"fmt"
	"io"
	"sync"
)

// lockProgress draws a line with the number of resolved references on a terminal.
type lockProgress struct {
	w io.Writer // nil if it is not a terminal

	mu      sync.Mutex
	n, from int
}

func newLockProgress(stderr io.Writer) *lockProgress {
	if _, ok := terminal(stderr); !ok {
		return &lockProgress{}
	}
	return &lockProgress{w: stderr}
}

func (p *lockProgress) start(total int) {
	p.from = total
	p.draw()
}

func (p *lockProgress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.n++
	p.draw()
}

func (p *lockProgress) draw() {
	if p.w != nil {
		fmt.Fprintf(p.w, "\rResolved %d of %d", p.n, p.from)
	}
}

// end removes the line.
func (p *lockProgress) end() {
	if p.w != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
