package resolve

import (
	"sync"
	"time"
)

const (
	// originsMaxAge is how long it is remembered that a server does not serve ranges.
	originsMaxAge = 24 * time.Hour
	// maxOrigins is the maximum number of servers that are remembered. A registry can redirect to any number.
	maxOrigins = 1024
)

// origins are the servers that do not serve ranges, by scheme, host and port. The zero value is ready for use.
type origins struct {
	mu    sync.Mutex
	since map[string]time.Time
}

// add remembers a server for originsMaxAge.
func (o *origins) add(origin string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == nil {
		o.since = make(map[string]time.Time)
	}
	o.since[origin] = time.Now()
	if len(o.since) <= maxOrigins {
		return
	}
	oldest := origin
	for other, since := range o.since {
		if since.Before(o.since[oldest]) {
			oldest = other
		}
	}
	delete(o.since, oldest)
}

// has reports whether a server is remembered.
func (o *origins) has(origin string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, ok := o.since[origin]
	return ok && time.Since(since) < originsMaxAge
}
