package pull

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestRate checks the rate over the last whole seconds.
func TestRate(t *testing.T) {
	var r rate
	at := func(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }
	want := func(ms int, bytes int64) {
		t.Helper()
		if got := r.now(at(ms)); got != bytes {
			t.Errorf("after %s: %d bytes per second, want %d", at(ms), got, bytes)
		}
	}
	want(0, 0)
	r.add(1000, at(100))
	want(999, 0) // no whole second
	want(1000, 1000)
	want(2000, 500)
	r.add(500, at(2500))
	r.add(600, at(1900)) // another goroutine, a little late
	want(2999, 500)
	want(3000, 700) // 1000, 0 and 1100
	want(10_000, 210)
	want(11_000, 110) // without the first second
	want(12_000, 110)
	want(13_000, 0)
	want(1_000_000, 0)
	r.add(50, at(1_000_000))
	want(1_001_000, 5)
}

// TestRunning checks the state of a pull: bytes, rate, the time that is left, and what it waits for.
func TestRunning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &Puller{}
		if all := p.Running(); len(all) != 0 {
			t.Errorf("got %v", all)
		}
		target := runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "overlayfs"}
		ctx, m, end := p.meters.start(t.Context(), nil, "registry.example.com/app:v1", target)
		want := func(w Running) {
			t.Helper()
			w.Ref, w.Target, w.Since = "registry.example.com/app:v1", target, m.since
			if all := p.Running(); len(all) != 1 || all[0] != w {
				t.Errorf("got %+v, want %+v", all, w)
			}
		}
		want(Running{})
		m.add(0)
		m.add(-1)
		m.add(100)
		m.expect(1000)
		time.Sleep(2 * time.Second)
		want(Running{Received: 100, Total: 1000, Rate: 50, Left: 18 * time.Second, Waits: waitsForUnpack})
		m.flow.Receive(func() {
			want(Running{Received: 100, Total: 1000, Rate: 50, Left: 18 * time.Second, Waits: bandwidth.Registry})
		})

		// The lock of a blob that another pull from this registry writes.
		locks := (&Locks{}).of("registry.example.com")
		unlock, err := locks.blob(t.Context(), digest.FromString("blob"))
		if err != nil {
			t.Fatal(err)
		}
		locked := make(chan error)
		go func() {
			unlock, err := locks.blob(ctx, digest.FromString("blob"))
			if err == nil {
				unlock()
			}
			locked <- err
		}()
		synctest.Wait()
		want(Running{Received: 100, Total: 1000, Rate: 50, Left: 18 * time.Second, Waits: bandwidth.OtherPull})
		unlock()
		if err := <-locked; err != nil {
			t.Error(err)
		}

		m.add(900)
		time.Sleep(time.Second)
		want(Running{Received: 1000, Total: 1000, Rate: 333, Waits: waitsForUnpack})
		time.Sleep(time.Hour)
		want(Running{Received: 1000, Total: 1000, Waits: waitsForUnpack})
		end()
		if all := p.Running(); len(all) != 0 {
			t.Errorf("after the end: got %v", all)
		}
	})
}

func TestTimeFor(t *testing.T) {
	for _, c := range []struct {
		bytes, rate int64
		want        time.Duration
	}{{1, 1, time.Second}, {10, 3, 4 * time.Second}, {9, 3, 3 * time.Second}, {math.MaxInt64 - 1, 1, math.MaxInt64 / time.Second * time.Second}} {
		if got := timeFor(c.bytes, c.rate); got != c.want {
			t.Errorf("%d bytes at %d: got %s, want %s", c.bytes, c.rate, got, c.want)
		}
	}
}
