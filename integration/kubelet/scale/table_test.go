package main

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestTable(t *testing.T) {
	took := func(image, whole time.Duration) start {
		return start{image: image * time.Millisecond, whole: whole * time.Millisecond}
	}
	r := results{
		about:  "a machine",
		stored: stored{pins: 1_000, before: database{1e6, 5e5}, after: database{4e6, 2.5e6}, rss: [2]float64{3e8, 4e8}},
		columns: []column{
			{name: "alone", all: 30 * time.Second, usage: usage{server: time.Second, peak: 1e8}, beats: beats{took: []float64{2e6, 4e6}, oldest: 21 * time.Second, failed: 1}},
			{name: "at once", agents: 4, pins: 1, won: 1, failed: 2, took: []float64{1e6, 2e6, 3e6, 4e9}, all: 4 * time.Second, events: 3,
				usage: usage{server: 2 * time.Second, etcd: 10 * time.Millisecond, self: time.Minute, peak: 2e8, rejected: 1_234}},
		},
		starts: []*starts{{
			startCase: startCase{name: "new", budget: 10 * time.Millisecond},
			without:   []start{took(10, 100), took(20, 200), took(30, 300)}, with: []start{took(15, 90), took(40, 240), took(31, 330)},
		}},
	}
	var out bytes.Buffer
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
a machine

                                      alone   at once
new ImagePins                             –         1
agents that created an ImagePin           –         1
agents whose first attempt failed         –         2
claim: p50                                –   2.00 ms
claim: p99                                –    4.00 s
claim: maximum                            –    4.00 s
duration                             30.0 s    4.00 s
answers 429                               0     1,234
Events                                    –         3
API server: CPU                      1.00 s    2.00 s
API server: maximum memory (RSS)   100.0 MB  200.0 MB
etcd: CPU                                 0   10.0 ms
benchmark process: CPU                    0    60.0 s
heartbeats                                3         0
heartbeats that failed                    1         0
oldest lease                         21.0 s         0
heartbeat: p50                      2.00 ms         –
heartbeat: p99                      4.00 ms         –

stored ImagePins                                1,000
etcd: bytes of each ImagePin                    2,000
etcd: database, without ImagePins              1.0 MB
etcd: database, with ImagePins                 4.0 MB
API server: memory (RSS), without ImagePins  300.0 MB
API server: memory (RSS), with ImagePins     400.0 MB

start of a pod               without  with ImagePins          difference (min–max)      budget
new: image, CreateContainer  20.0 ms         31.0 ms  +5.00 ms (+1.00 ms–+20.0 ms)  ≤ +10.0 ms  ok
new: all calls                200 ms          240 ms  +30.0 ms (-10.0 ms–+40.0 ms)
`, "\n")
	if got := out.String(); got != want {
		t.Errorf("got the table\n%s\nwant\n%s", got, want)
	}
}
