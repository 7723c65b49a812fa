package resolve

import "time"

// waitMeter measures reads of a body: how fast they are, and how much of the time is spent in them rather than by the
// reader.
type waitMeter struct {
	since time.Time
	now   time.Time // end of the last read
	bytes int64
	in    time.Duration // time in reads
}

// reset starts the measurement.
func (m *waitMeter) reset(now time.Time) { *m = waitMeter{since: now, now: now} }

// add adds a read of n bytes.
func (m *waitMeter) add(n int, start, end time.Time) {
	m.bytes += int64(n)
	m.in += end.Sub(start)
	m.now = end
}

func (m *waitMeter) elapsed() time.Duration { return m.now.Sub(m.since) }

// rate returns bytes per second.
func (m *waitMeter) rate() float64 {
	return float64(m.bytes) / max(m.elapsed(), time.Nanosecond).Seconds()
}

// waiting returns the share of the time that was spent in reads.
func (m *waitMeter) waiting() float64 {
	return float64(m.in) / float64(max(m.elapsed(), time.Nanosecond))
}
