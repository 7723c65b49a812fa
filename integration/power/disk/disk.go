// Package disk is a disk in memory that can be copied at any moment. A copy has what has reached the disk: what a machine
// finds after a power loss. What is only in the page cache is not in it.
//
// The kernel has the disk as a loop device on a file that this process serves by FUSE. All that is left of a killed process
// is in its mount namespace, so that the kernel removes it with the last process in it, see [Isolate].
package disk

import (
	"math/rand/v2"
	"sync"
)

// chunkSize is the unit in which copies share content, in bytes.
const chunkSize = 64 << 10

// Disk is a disk. Its methods are safe for concurrent use.
type Disk struct {
	mu     sync.Mutex
	size   int64
	chunks []*chunk // nil is a chunk of zeros
	owner  *owner   // of the chunks that no other disk has
	off    bool

	cache   *cache
	sampler *sampler
	flushes int
}

type chunk struct {
	owner   *owner
	content [chunkSize]byte
}

// owner identifies a disk since its last copy. It is not empty, because pointers to empty types may be equal.
type owner struct{ _ byte }

// cache has the writes that a disk with a volatile write cache may lose.
type cache struct {
	flushed *Disk // the disk at its last flush
	writes  []write
}

type write struct {
	at      int64
	content []byte
}

// sampler selects copies with equal probability from all states of the disk (reservoir sampling).
type sampler struct {
	label   func() int
	seen    int
	samples []Sample
}

// Sample is a copy of a disk.
type Sample struct {
	*Disk
	// Label is what the label of [Disk.BeginSamples] was at the time of the copy.
	Label int
}

// New returns a disk of zeros. The size in bytes is rounded up to chunks.
func New(size int64) *Disk {
	n := (size + chunkSize - 1) / chunkSize
	return &Disk{size: n * chunkSize, chunks: make([]*chunk, n), owner: &owner{}}
}

// Cut returns a copy of the disk as it is at this moment. If the disk has a volatile cache, every second copy, at random, has
// lost each write since the last flush with a probability of a half.
func (d *Disk) Cut() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cut()
}

func (d *Disk) cut() *Disk {
	if d.cache == nil || rand.IntN(2) == 0 {
		return d.clone()
	}
	c := d.cache.flushed.clone()
	for _, w := range d.cache.writes {
		if rand.IntN(2) == 0 {
			c.write(w.content, w.at)
		}
	}
	return c
}

// clone returns a disk that shares all chunks. Both copy a chunk before they write to it.
func (d *Disk) clone() *Disk {
	d.owner = &owner{}
	return &Disk{size: d.size, chunks: append([]*chunk(nil), d.chunks...), owner: &owner{}}
}

// SetVolatileCache makes a disk lose writes since its last flush, see [Disk.Cut].
func (d *Disk) SetVolatileCache() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cache = &cache{flushed: d.clone()}
}

// BeginSamples selects n of all states that the disk has from now on, each with equal probability. The disk changes its state
// with each write and each flush. label is called for each selected state. It must not use the disk.
func (d *Disk) BeginSamples(n int, label func() int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sampler = &sampler{label: label, samples: make([]Sample, 0, n)}
}

// EndSamples returns the selected states, in no order. There are fewer than n if the disk had fewer states.
func (d *Disk) EndSamples() []Sample {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sampler.samples
	d.sampler = nil
	return s
}

// Off makes the disk drop all writes from now on. Use it when nobody reads the disk again.
func (d *Disk) Off() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off, d.sampler, d.cache = true, nil, nil
}

// Flushes returns how often the disk was flushed.
func (d *Disk) Flushes() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.flushes
}

// WriteAt implements [io.WriterAt].
func (d *Disk) WriteAt(b []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return len(b), nil
	}
	d.write(b, at)
	if d.cache != nil {
		d.cache.writes = append(d.cache.writes, write{at, append([]byte(nil), b...)})
	}
	d.sample()
	return len(b), nil
}

// ReadAt implements [io.ReaderAt]. It reads what is in the volatile cache, too.
func (d *Disk) ReadAt(b []byte, at int64) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b = b[:max(0, min(int64(len(b)), d.size-at))]
	for n := 0; n < len(b); {
		c, in := d.chunks[(at+int64(n))/chunkSize], int((at+int64(n))%chunkSize)
		part := b[n:min(len(b), n+chunkSize-in)]
		if c == nil {
			clear(part)
		} else {
			copy(part, c.content[in:])
		}
		n += len(part)
	}
	return len(b), nil
}

// Flush makes all writes durable.
func (d *Disk) Flush() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.flushes++
	if d.cache != nil {
		d.cache = &cache{flushed: d.clone()}
	}
	d.sample()
}

func (d *Disk) write(b []byte, at int64) {
	for len(b) > 0 {
		n, in := at/chunkSize, at%chunkSize
		c := d.chunks[n]
		switch {
		case c == nil:
			c = &chunk{owner: d.owner}
		case c.owner != d.owner:
			c = &chunk{d.owner, c.content}
		}
		d.chunks[n] = c
		written := copy(c.content[in:], b)
		b, at = b[written:], at+int64(written)
	}
}

func (d *Disk) sample() {
	s := d.sampler
	if s == nil {
		return
	}
	s.seen++
	if len(s.samples) < cap(s.samples) {
		s.samples = append(s.samples, Sample{d.cut(), s.label()})
	} else if i := rand.IntN(s.seen); i < len(s.samples) {
		s.samples[i] = Sample{d.cut(), s.label()}
	}
}
