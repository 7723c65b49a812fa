package download

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var errBroken = errors.New("the connection is broken")

// TestWindowPassesBytes writes and reads pieces of random sizes at the same time.
func TestWindowPassesBytes(t *testing.T) {
	want := make([]byte, 3*windowChunks*chunkSize+17)
	for i := range want {
		want[i] = byte(i / 7)
	}
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		w := newWindow(m, maxWait)
		if !w.attach() || w.attach() {
			t.Fatal("a window must be attached once")
		}
		go func() {
			for p := want; len(p) > 0; {
				n := min(len(p), 1+rand.IntN(3*chunkSize))
				w.write(t.Context(), p[:n])
				p = p[n:]
			}
			w.fail(io.ErrUnexpectedEOF)
		}()
		var got []byte
		for {
			p := make([]byte, 1+rand.IntN(chunkSize))
			n, err := w.read(t.Context(), p)
			if got = append(got, p[:n]...); err != nil {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Error(err)
				}
				break
			}
		}
		if !bytes.Equal(got, want) {
			t.Errorf("read %d bytes that differ from the %d that were written", len(got), len(want))
		}
		if w.drop(); m.used != 0 {
			t.Errorf("%d chunks are in use at the end", m.used)
		}
	})
}

// TestWindowWithoutReader checks that a download does not wait for a reader that has not come.
func TestWindowWithoutReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		w := newWindow(m, maxWait)
		w.write(t.Context(), make([]byte, windowChunks*chunkSize))
		if m.used != windowChunks {
			t.Errorf("a full window uses %d chunks", m.used)
		}
		start := time.Now()
		w.write(t.Context(), []byte{1})
		if waited := time.Since(start); waited != 0 {
			t.Errorf("the download waited %s", waited)
		}
		if m.used != 0 {
			t.Errorf("a dropped window uses %d chunks", m.used)
		}
		if w.attach() {
			t.Error("a dropped window was attached")
		}
	})
}

// TestWindowWithSlowReader checks that a download waits for its reader for a limited time in total, and that the reader
// then learns that its window is dropped.
func TestWindowWithSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(&memory{}, maxWait)
		w.attach()
		w.write(t.Context(), make([]byte, windowChunks*chunkSize))
		go func() {
			for range 2 { // a chunk every 10 seconds
				time.Sleep(10 * time.Second)
				if _, err := w.read(t.Context(), make([]byte, chunkSize)); err != nil {
					t.Error(err)
				}
			}
		}()
		start := time.Now()
		w.write(t.Context(), make([]byte, 3*chunkSize))
		if waited := time.Since(start); waited != maxWait {
			t.Errorf("the download waited %s, want %s", waited, maxWait)
		}
		if _, err := w.read(t.Context(), make([]byte, 10)); !errors.Is(err, errDropped) {
			t.Errorf("the reader got %v", err)
		}
	})
}

// TestWindowEnds checks that neither side waits after the context has ended, and that the error of a download comes
// after its bytes.
func TestWindowEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		full, empty := newWindow(&memory{}, maxWait), newWindow(&memory{}, maxWait)
		full.attach()
		full.write(ctx, make([]byte, windowChunks*chunkSize+1))
		if !full.dropped || ctx.Err() == nil {
			t.Error("the writer did not wait until the context ended")
		}
		if _, err := empty.read(ctx, make([]byte, 1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the reader got %v", err)
		}
		broken := newWindow(&memory{}, maxWait)
		broken.attach()
		broken.write(t.Context(), []byte("bytes"))
		broken.fail(errBroken)
		p := make([]byte, 10)
		if n, err := broken.read(t.Context(), p); string(p[:n]) != "bytes" || err != nil {
			t.Errorf("read %q, %v", p[:n], err)
		}
		if _, err := broken.read(t.Context(), p); !errors.Is(err, errBroken) {
			t.Errorf("the reader got %v", err)
		}
		empty.fail(nil)
		if _, err := empty.read(t.Context(), p); !errors.Is(err, io.EOF) {
			t.Errorf("the reader of a complete download got %v", err)
		}
	})
}

// TestDroppedWindowsFreeMemory checks that a dropped window does not refer to its chunks, which are in the pool then, and
// which a garbage collection frees.
func TestDroppedWindowsFreeMemory(t *testing.T) {
	w := newWindow(&memory{}, maxWait)
	w.write(t.Context(), make([]byte, windowChunks*chunkSize))
	all := w.chunks
	w.drop()
	for i, c := range all {
		if c != nil {
			t.Fatalf("chunk %d is in use", i)
		}
	}
}

// TestMemoryIsBounded checks that all windows together use a bounded amount of memory, and that each one that is read
// makes progress.
func TestMemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const layers = 16
		m := &memory{}
		var windows []*window
		var wg sync.WaitGroup
		for range layers {
			w := newWindow(m, maxWait)
			w.attach()
			windows = append(windows, w)
			wg.Go(func() {
				for range 2 * windowChunks {
					w.write(t.Context(), make([]byte, chunkSize))
				}
				w.fail(io.EOF)
			})
		}
		synctest.Wait()
		if m.used < memoryChunks || m.used > memoryChunks+layers {
			t.Errorf("full windows use %d chunks, want %d to %d", m.used, memoryChunks, memoryChunks+layers)
		}
		for _, w := range windows {
			wg.Go(func() {
				read, p := 0, make([]byte, chunkSize)
				for {
					n, err := w.read(t.Context(), p)
					if read += n; err != nil {
						break
					}
				}
				if read != 2*windowChunks*chunkSize {
					t.Errorf("read %d bytes: the window was dropped", read)
				}
			})
		}
		wg.Wait()
		if m.used != 0 {
			t.Errorf("%d chunks are in use at the end", m.used)
		}
	})
}

// TestUnreadBytesGiveWay fills the memory with layers that no reader has come for, and whose ends do not come. A layer that
// is being read gets memory, and another one that is not read yet gets as much as each of them has.
func TestUnreadBytesGiveWay(t *testing.T) {
	m := &memory{}
	var unread []*window
	for range memoryChunks / windowChunks {
		w := newWindow(m, maxWait)
		w.write(t.Context(), make([]byte, windowChunks*chunkSize))
		unread = append(unread, w)
	}
	attached := newWindow(m, maxWait)
	attached.attach()
	attached.write(t.Context(), make([]byte, 2*chunkSize)) // would wait for its reader
	if attached.end != chunkSize || len(attached.chunks) != 2 {
		t.Errorf("a layer that is being read has %d chunks, want 2", len(attached.chunks))
	}
	next := newWindow(m, maxWait)
	next.write(t.Context(), make([]byte, windowChunks*chunkSize))
	if n, _ := next.size(); n != windowChunks {
		t.Errorf("the next layer has %d chunks, want %d", n, windowChunks)
	}
	dropped := 0
	for _, w := range unread {
		if !w.attach() {
			dropped++
		}
	}
	if dropped != 2 {
		t.Errorf("%d layers gave way, want 2", dropped)
	}
	for _, w := range append(unread, attached, next) {
		w.drop()
	}
	if m.used != 0 || len(m.chunks) != 0 {
		t.Errorf("%d chunks of %d windows are in use at the end", m.used, len(m.chunks))
	}
}

// TestUnreadBytesOfEqualSizes checks that layers that no reader has come for do not take each other's memory if they have
// equally much.
func TestUnreadBytesOfEqualSizes(t *testing.T) {
	m := &memory{}
	var all []*window
	for range memoryChunks {
		w := newWindow(m, maxWait)
		w.write(t.Context(), make([]byte, chunkSize))
		all = append(all, w)
	}
	next := newWindow(m, maxWait)
	next.write(t.Context(), []byte{1})
	if next.attach() {
		t.Error("a layer without memory has bytes")
	}
	for _, w := range all {
		if !w.attach() {
			t.Fatal("a layer gave way to a smaller one")
		}
	}
}
