package download

import (
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"time"
)

const (
	// chunkSize is the size of the pieces of memory of a window, in bytes.
	chunkSize = 512 << 10
	// windowChunks is the maximum size of a window, in chunks.
	windowChunks = 64
	// memoryChunks is the maximum size of all windows of a [Store], in chunks, without the first chunk of each window
	// that is being read.
	memoryChunks = 256
	// maxWait is how long a download waits for its reader, in total.
	maxWait = 30 * time.Second
)

var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// errDropped reports that the bytes after the reader's offset are not in the window.
var errDropped = errors.New("the window is dropped")

// window has the bytes that a download has received and its reader has not read. It has one writer and one reader.
//
// A download does not wait for a reader that has not come: if the window is full before, it is dropped, and the bytes
// are in the content store only. It is also dropped if another window needs its memory, see [memory.reclaim]: a registry
// that does not send the end of a layer would keep it. A download waits for a slow reader for a limited time, because it
// has a slot of max_concurrent_downloads and the lock of its blob.
type window struct {
	memory *memory
	wait   time.Duration // left, for the writer

	readable, writable chan struct{} // have a value if there may be something to read, or room to write

	mu       sync.Mutex
	chunks   []*[chunkSize]byte // the first chunk begins at start, the last one ends at end
	start    int
	end      int
	attached bool
	dropped  bool
	err      error // the download failed
}

func newWindow(m *memory, wait time.Duration) *window {
	return &window{memory: m, wait: wait, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1)}
}

// attach starts reading. It fails if the window was dropped, or was attached before.
func (w *window) attach() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dropped || w.attached {
		return false
	}
	w.attached = true
	return true
}

// write adds a copy of p. It waits for the reader if the window is full.
func (w *window) write(ctx context.Context, p []byte) {
	for {
		var wait, short bool
		if p, wait, short = w.add(p); len(p) == 0 {
			return
		}
		if short && w.memory.reclaim(w) {
			continue
		}
		if !wait || !w.waitWritable(ctx) {
			w.drop()
			return
		}
	}
}

// add copies as much of p as the window has room for, and returns the rest. wait reports whether to wait for the reader
// with the rest, and short whether the window could have more chunks.
func (w *window) add(p []byte) (rest []byte, wait, short bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	added := false
	for len(p) > 0 && !w.dropped {
		if len(w.chunks) == 0 || w.end == chunkSize {
			if !w.grow() {
				break
			}
		}
		n := copy(w.chunks[len(w.chunks)-1][w.end:], p)
		w.end += n
		p, added = p[n:], true
	}
	if added {
		signal(w.readable)
	}
	if w.dropped {
		return nil, false, false
	}
	return p, w.attached, len(w.chunks) < windowChunks
}

// grow adds a chunk if there is memory for one. The caller holds w.mu.
func (w *window) grow() bool {
	first := w.attached && len(w.chunks) == 0 // without it the reader would wait for the memory of other windows
	if len(w.chunks) == windowChunks || !w.memory.take(w, first) {
		return false
	}
	w.chunks, w.end = append(w.chunks, chunks.Get().(*[chunkSize]byte)), 0
	return true
}

// waitWritable waits until the reader has read a chunk.
func (w *window) waitWritable(ctx context.Context) bool {
	start := time.Now()
	defer func() { w.wait -= time.Since(start) }()
	timer := time.NewTimer(w.wait)
	defer timer.Stop()
	select {
	case <-w.writable:
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}

// read reads into p, and waits until there is something to read. It fails with errDropped, with the error of the
// download, or with the context's error.
func (w *window) read(ctx context.Context, p []byte) (int, error) {
	for {
		if n, err := w.take(p); n > 0 || err != nil {
			return n, err
		}
		select {
		case <-w.readable:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// take copies what is in the window into p, up to the end of a chunk.
func (w *window) take(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.chunks) > 0 {
		end := chunkSize
		if len(w.chunks) == 1 {
			end = w.end
		}
		n := copy(p, w.chunks[0][w.start:end])
		if w.start += n; w.start == chunkSize {
			w.free(1)
			signal(w.writable)
		}
		if n > 0 {
			return n, nil
		}
	}
	if w.dropped {
		return 0, errDropped
	}
	return 0, w.err
}

// free frees the first n chunks. The caller holds w.mu.
func (w *window) free(n int) {
	for _, c := range w.chunks[:n] {
		chunks.Put(c)
	}
	w.memory.give(w, n)
	clear(w.chunks[:n]) // the slice's array must not keep what is in the pool
	w.chunks, w.start = w.chunks[n:], 0
}

// fail ends the window with the error of the download, after what is in it.
func (w *window) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; err == nil {
		w.err = io.EOF
	}
	signal(w.readable)
}

// drop frees the window's memory. The writer does not wait any longer, and the reader has to read from elsewhere.
func (w *window) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dropped = true
	w.free(len(w.chunks))
	signal(w.readable)
	signal(w.writable)
}

// dropUnread drops the window if no reader has come.
func (w *window) dropUnread() {
	if _, unread := w.size(); unread {
		w.drop() // a reader that comes now reads from elsewhere
	}
}

// size returns the number of chunks of the window, and whether no reader has come.
func (w *window) size() (chunks int, unread bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.chunks), !w.attached
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// memory bounds the chunks of all windows. The zero value is ready for use.
type memory struct {
	mu     sync.Mutex
	used   int
	chunks map[*window]int // of each window that has chunks
}

// take takes a chunk for a window, if there is one or if it must.
func (m *memory) take(w *window, must bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used >= memoryChunks && !must {
		return false
	}
	if m.chunks == nil {
		m.chunks = make(map[*window]int)
	}
	m.used++
	m.chunks[w]++
	return true
}

func (m *memory) give(w *window, n int) {
	if n == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used -= n
	if m.chunks[w] -= n; m.chunks[w] == 0 {
		delete(m.chunks, w)
	}
}

// reclaim makes room for a chunk of a window: it drops the largest window without a reader. If the window has no reader
// either, it drops only one that has more than the window will have. It reports whether there is room. The caller does
// not hold the mutex of a window.
func (m *memory) reclaim(w *window) bool {
	m.mu.Lock()
	room, all := m.used < memoryChunks, maps.Clone(m.chunks)
	m.mu.Unlock()
	if room {
		return true
	}
	least := 1
	if own, unread := w.size(); unread {
		least = own + 2
	}
	var largest *window
	for other := range all {
		if n, unread := other.size(); other != w && unread && n >= least {
			largest, least = other, n+1
		}
	}
	if largest == nil {
		return false
	}
	largest.dropUnread()
	return true
}
