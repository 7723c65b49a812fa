package durable

import (
	"context"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// Tree is the directory of a committed snapshot. The files of its layer do not change.
type Tree struct {
	path string
	// write writes the files of the layer. It is nil if only [Barrier.SyncTrees] writes them.
	write   func() error
	begun   atomic.Bool
	written chan struct{} // closed when write has returned
	err     error         // of write
}

// trees returns directories that nobody writes before [Barrier.SyncTrees].
func trees(paths []string) (all []*Tree) {
	for _, path := range paths {
		all = append(all, &Tree{path: path})
	}
	return all
}

// writtenAhead returns a directory whose files can be written before [Barrier.SyncTrees].
func (b *Barrier) writtenAhead(path string) *Tree {
	return &Tree{path: path, write: func() error { return b.writeTree(path) }, written: make(chan struct{})}
}

// writeOnce writes the files of the layer, if nobody does or has done that.
func (t *Tree) writeOnce() {
	if t.write != nil && t.begun.CompareAndSwap(false, true) {
		t.err = t.write()
		close(t.written)
	}
}

// wait waits for a call of writeOnce, and reports whether the files of the layer are written. It fails if the disk has lost one of
// them: the kernel reports that once. It also fails with the cause of ctx if that ends.
func (t *Tree) wait(ctx context.Context) (written bool, _ error) {
	if t.write == nil {
		return false, nil
	}
	select {
	case <-t.written:
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	return t.err == nil, t.lost()
}

// lost returns the error of the disk if it has lost a file, as far as that is known.
func (t *Tree) lost() error {
	select {
	case <-t.written: // never if it is nil
		if errdefs.IsUnavailable(t.err) {
			return t.err
		}
	default:
	}
	return nil
}

// waitFor writes the trees that can be written ahead, one after the other, and returns when all of these are written. It reports for
// each tree whether the files of its layer are.
func waitFor(ctx context.Context, trees []*Tree) (written []bool, err error) {
	go func() {
		for _, t := range trees {
			t.writeOnce()
		}
	}()
	written = make([]bool, len(trees))
	for i, t := range trees {
		if written[i], err = t.wait(ctx); err != nil {
			return nil, err
		}
	}
	return written, nil
}

// ahead writes trees one after the other, without a caller that waits. It has no more than one goroutine, also if a disk does not
// answer. The caller of its methods holds the lock of [Snapshots].
type ahead struct {
	waiting []*Tree
	running bool
}

// add adds a tree, and reports whether the caller has to start a goroutine that calls next.
func (a *ahead) add(t *Tree) (start bool) {
	a.waiting = append(a.waiting, t)
	start, a.running = !a.running, true
	return start
}

// next returns the next tree, or nil when there is none. The goroutine ends then.
func (a *ahead) next() *Tree {
	if len(a.waiting) == 0 {
		a.running = false
		return nil
	}
	t := a.waiting[0]
	a.waiting = a.waiting[1:]
	return t
}
