package resolve

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestBandwidth checks on a fake clock that all bodies of a context together are read no faster than allowed, and as fast.
func TestBandwidth(t *testing.T) {
	const (
		bytesPerSecond = 100_000
		size           = 500_000
	)
	synctest.Test(t, func(t *testing.T) {
		ctx := WithBandwidth(t.Context(), bytesPerSecond)
		start := time.Now()
		var read atomic.Int64
		var all sync.WaitGroup
		for range 3 {
			body := limited(ctx, io.NopCloser(bytes.NewReader(make([]byte, size))))
			all.Go(func() {
				buffer := make([]byte, size) // larger than the burst
				for {
					n, err := body.Read(buffer)
					if n > burst {
						t.Errorf("one read of %d bytes", n)
					}
					now := read.Add(int64(n))
					if allowed := burst + int64(time.Since(start).Seconds()*bytesPerSecond) + 1; now > allowed {
						t.Errorf("%d bytes after %s, allowed are %d", now, time.Since(start), allowed)
					}
					if err == io.EOF {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		if took, want := time.Since(start), time.Duration(float64(3*size-burst)/bytesPerSecond*float64(time.Second)); read.Load() != 3*size || took < want || took > want+time.Second {
			t.Errorf("read %d bytes in %s, want %d in %s", read.Load(), took, 3*size, want)
		}
	})
}

// TestBandwidthEnds checks that a read that waits ends with its context, and that no limit is no limit.
func TestBandwidthEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(WithBandwidth(t.Context(), 1))
		body := limited(ctx, io.NopCloser(bytes.NewReader(make([]byte, 2*burst))))
		n, err := io.ReadFull(body, make([]byte, burst))
		if n != burst || err != nil {
			t.Fatalf("the first burst: %d bytes, %v", n, err)
		}
		time.AfterFunc(time.Second, cancel)
		start := time.Now()
		if _, err := body.Read(make([]byte, burst)); !errors.Is(err, context.Canceled) || time.Since(start) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(start))
		}
	})
	body := io.NopCloser(bytes.NewReader(nil))
	for _, bytesPerSecond := range []int64{0, -1} {
		if limited(WithBandwidth(t.Context(), bytesPerSecond), body) != body {
			t.Errorf("a bandwidth of %d is limited", bytesPerSecond)
		}
	}
}
