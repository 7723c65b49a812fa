package pull

import (
	"math"
	"sync"
	"time"
)

// rateSeconds is over how many seconds the rate of a pull is measured.
const rateSeconds = 10

// rate measures bytes per second over the last seconds. The zero value is ready for use.
type rate struct {
	mu     sync.Mutex
	second int64 // the last one that has bytes, since the start of the pull
	bytes  [rateSeconds + 1]int64
}

// add adds bytes that have arrived at a time after the start.
func (r *rate) add(n int, at time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveTo(int64(at / time.Second))
	r.bytes[r.second%int64(len(r.bytes))] += int64(n)
}

// now returns the bytes per second at a time after the start, over the whole seconds before it: 0 in the first one.
func (r *rate) now(at time.Duration) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moveTo(int64(at / time.Second))
	seconds := min(r.second, rateSeconds)
	if seconds == 0 {
		return 0
	}
	var sum int64
	for i := r.second - seconds; i < r.second; i++ {
		sum += r.bytes[i%int64(len(r.bytes))]
	}
	return sum / seconds
}

// moveTo makes a second the last one. Calls at the same time can come in another order.
func (r *rate) moveTo(second int64) {
	for i := max(r.second+1, second-rateSeconds); i <= second; i++ {
		r.bytes[i%int64(len(r.bytes))] = 0
	}
	r.second = max(r.second, second)
}

// timeFor returns the time for bytes at a rate in bytes per second, in whole seconds.
func timeFor(n, rate int64) time.Duration {
	const most = int64(math.MaxInt64 / time.Second)
	return time.Duration(min((n+rate-1)/rate, most)) * time.Second
}
