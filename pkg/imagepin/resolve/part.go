package resolve

import (
	"context"
	"io"
	"sync"
)

// part is a range of a blob that is fetched ahead of its reader. What is not read yet is in memory, up to the size of its
// buffer.
type part struct {
	first, end int64 // the bytes of the blob from first to before end
	at         *attempt
	buffer     []byte

	mu       sync.Mutex
	changed  *sync.Cond
	ring     []byte
	start    int   // of what is not read yet
	unread   int   // bytes in the ring
	received int64 // bytes
	err      error
	ended    bool // complete, failed or closed
}

func newPart(first, end int64, buffer []byte, at *attempt) *part {
	p := &part{first: first, end: end, buffer: buffer, ring: buffer[:min(int64(len(buffer)), end-first)], at: at}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// fetch reads the range from a body that open returns, and closes the body.
func (p *part) fetch(ctx context.Context, open func(context.Context) (io.ReadCloser, error)) {
	rc, err := open(withAttempt(ctx, p.at))
	if err == nil {
		err = p.fill(rc)
		_ = rc.Close() // the range is complete, or has failed
	}
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	p.finish(err)
}

// fill reads the range from r.
func (p *part) fill(r io.Reader) error {
	for {
		into := p.room()
		if into == nil {
			return nil
		}
		n, err := r.Read(into)
		if complete := p.add(n); complete {
			return nil
		}
		if err != nil {
			return short(err)
		}
	}
}

// room returns free space in the ring, and waits for it. It returns nil if the part has ended.
func (p *part) room() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unread == len(p.ring) && !p.ended {
		p.changed.Wait()
	}
	if p.ended {
		return nil
	}
	from := (p.start + p.unread) % len(p.ring)
	to := len(p.ring)
	if from < p.start {
		to = p.start
	}
	return p.ring[from:to]
}

// add adds n bytes that were read into the room. It reports whether the range is complete.
func (p *part) add(n int) (complete bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unread += n
	p.received += int64(n)
	p.changed.Broadcast()
	return p.received == p.end-p.first
}

// finish ends the part. What is in the ring can still be read.
func (p *part) finish(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.ended, p.err = true, err
	}
	p.changed.Broadcast()
}

// Read implements io.Reader. It fails with io.EOF after the last byte of the range.
func (p *part) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unread == 0 && !p.ended {
		p.changed.Wait()
	}
	if p.unread == 0 {
		if p.err != nil {
			return 0, p.err
		}
		return 0, io.EOF
	}
	n := copy(b, p.ring[p.start:min(p.start+p.unread, len(p.ring))])
	p.start = (p.start + n) % len(p.ring)
	p.unread -= n
	p.changed.Broadcast()
	return n, nil
}

// available returns the number of bytes that can be read at once.
func (p *part) available() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.unread)
}

// answered reports whether the range is being received.
func (p *part) answered() bool {
	_, ok := p.at.served()
	return ok
}

// complete reports whether the whole range has been received.
func (p *part) complete() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received == p.end-p.first
}

// failed returns the error of the part, if it has failed.
func (p *part) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}
