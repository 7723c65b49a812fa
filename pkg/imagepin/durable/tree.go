package durable

import (
	"context"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Tree is the directory of a committed snapshot, whose files do not change.
type Tree struct {
	path string
	// write writes the files. It is nil if nobody calls it before the files must be durable.
	write   func() error
	begun   atomic.Bool
	written chan struct{} // closed when write has returned
	err     error         // of write
}

// trees returns directories that nobody writes.
func trees(paths []string) (all []*Tree) {
	for _, path := range paths {
		all = append(all, &Tree{path: path})
	}
	return all
}

// beginTree begins to write the files of a directory when all are written that were passed before. [Barrier.SyncTrees] does not wait
// for these.
func (b *Barrier) beginTree(path string) *Tree {
	t := &Tree{path: path, write: func() error { return b.writeTree(path) }, written: make(chan struct{})}
	go func() {
		b.writing.Lock()
		defer b.writing.Unlock()
		t.writeOnce()
	}()
	return t
}

func (t *Tree) writeOnce() {
	if t.begun.CompareAndSwap(false, true) {
		t.err = t.write()
		close(t.written)
	}
}

// begin begins to write the files, if that has not begun.
func (t *Tree) begin() {
	if t.write != nil && !t.begun.Load() {
		go t.writeOnce()
	}
}

// wait returns when the files are written, if that has begun, and reports whether they are. It fails if the disk has lost one of them:
// the kernel reports that once. It also fails with the cause of ctx if that ends.
func (t *Tree) wait(ctx context.Context) (written bool, _ error) {
	if t.write == nil {
		return false, nil
	}
	select {
	case <-t.written:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	if errdefs.IsUnavailable(t.err) {
		return false, t.err
	}
	return t.err == nil, nil
}

// waitFor returns when trees are written that somebody has begun to write, and begins to write those that wait for others. It reports
// for each tree whether all of its files are written.
func waitFor(ctx context.Context, trees []*Tree) (written []bool, err error) {
	for _, t := range trees {
		t.begin()
	}
	written = make([]bool, len(trees))
	for i, t := range trees {
		if written[i], err = t.wait(ctx); err != nil {
			return nil, err
		}
	}
	return written, nil
}
