package transcript

import (
	"fmt"
	"os"
	"strings"
	"sync"
)

// Check compares outputs of a run with a document. With the environment variable IMAGEPIN_UPDATE_DOCS, it keeps those
// that differ, and writes them into the document.
type Check struct {
	d      *Document
	update bool

	mu     sync.Mutex
	byLine map[int]string // outputs that differ, by the line of their item
}

// Check returns a new check of the document.
func (d *Document) Check() *Check {
	return &Check{d: d, update: os.Getenv("IMAGEPIN_UPDATE_DOCS") != "", byLine: map[int]string{}}
}

// Output handles the output of an item: it returns a difference as an error, or keeps it for an update.
func (c *Check) Output(i Item, got string) error {
	if Equal(i.Want, got) {
		return nil
	}
	if !c.update {
		return fmt.Errorf("%s:%d: %s\ngot\n%s\nwant, as in the document\n%s", c.d.Path, i.Line, i.Text, Shorten(got), i.Want)
	}
	if strings.Contains(i.Want, anyLines) {
		return fmt.Errorf("%s:%d: update this output by hand, because of its %s:\n%s", c.d.Path, i.Line, anyLines, Shorten(got))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.byLine[i.Line] = got
	return nil
}

// Save writes what an update keeps into the document.
func (c *Check) Save() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.byLine) == 0 {
		return nil
	}
	return c.d.Update(c.byLine)
}
