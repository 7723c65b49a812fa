package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

const second = time.Second

// TestSince checks the differences of two readings.
func TestSince(t *testing.T) {
	before := counters{
		daemon: measure.Times{User: 5 * second, Kernel: 2 * second}, children: measure.Times{User: second},
		own: measure.Times{User: second, Kernel: second}, machine: measure.Times{User: 20 * second, Kernel: 10 * second},
		disk: 3 * second, written: 1e6,
	}
	after := counters{
		daemon: measure.Times{User: 7 * second, Kernel: 3 * second}, children: measure.Times{User: 5 * second, Kernel: second},
		own: measure.Times{User: second, Kernel: 2 * second}, machine: measure.Times{User: 30 * second, Kernel: 20 * second},
		disk: 4 * second, written: 5e6,
	}
	want := turn{
		Wall: 6 * second, User: 6 * second, Kernel: 2 * second, Children: 5 * second, Registry: second, Rest: 11 * second,
		Disk: second, Written: 4e6,
	}
	if got := after.since(before, 6*second); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// The kernel counts the times of the machine less exactly than those of processes.
	after.machine = before.machine
	if got := after.since(before, second); got.Rest != 0 {
		t.Errorf("got the rest %v, want 0", got.Rest)
	}
}

func TestFloor(t *testing.T) {
	for name, tc := range map[string]struct {
		turn                    turn
		decompression, download time.Duration
		want                    floor
	}{
		"processors":          {turn{User: 2 * second, Kernel: second, Registry: second, Children: second, Rest: 9 * second, Disk: second}, second, second, floor{2 * second, "processors"}},
		"decompression":       {turn{User: 5 * second, Disk: second}, 3 * second, second, floor{3 * second, "decompression"}},
		"disk":                {turn{User: 5 * second, Disk: 4 * second}, 3 * second, 0, floor{4 * second, "disk"}},
		"download":            {turn{User: 5 * second, Disk: second}, 3 * second, 4 * second, floor{4 * second, "download"}},
		"two that are equal":  {turn{User: 4 * second, Disk: 2 * second}, 0, 0, floor{2 * second, "processors"}},
		"no disk, no limit":   {turn{Wall: second, Kernel: second}, 1, 0, floor{second / 2, "processors"}},
		"waiting is no floor": {turn{Wall: 9 * second, User: 2 * second}, 0, 0, floor{second, "processors"}},
	} {
		if got := floorOf(tc.turn, tc.decompression, tc.download, 2); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
	}
}

func TestMedianTurn(t *testing.T) {
	got := medianTurn([]turn{
		{Wall: 5, User: 10, Kernel: 3, Children: 1, Registry: 7, Rest: 2, Disk: 4, Written: 30},
		{Wall: 3, User: 30, Kernel: 1, Children: 2, Registry: 8, Rest: 1, Disk: 6, Written: 20},
		{Wall: 4, User: 20, Kernel: 2, Children: 3, Registry: 9, Rest: 3, Disk: 5, Written: 10},
	})
	if want := (turn{Wall: 4, User: 20, Kernel: 2, Children: 2, Registry: 8, Rest: 2, Disk: 5, Written: 20}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSharesTable(t *testing.T) {
	var out bytes.Buffer
	if err := sharesTable(&out, []*shares{
		{
			name: "cold pull, 8 layers", image: imageTimes{Stock: 200 * time.Millisecond, Ours: 100 * time.Millisecond},
			stock: []turn{{Wall: 3 * second, User: second, Kernel: 400 * time.Millisecond, Registry: 100 * time.Millisecond, Disk: 500 * time.Millisecond, Written: 338e6}},
			ours:  []turn{{Wall: 900 * time.Millisecond, User: second, Kernel: 450 * time.Millisecond, Registry: 100 * time.Millisecond, Rest: 20 * time.Millisecond, Disk: 600 * time.Millisecond, Written: 338e6}},
		},
		{
			name: "cold pull, one layer", image: imageTimes{Stock: 4 * second, Ours: 2 * second},
			ours: []turn{{Wall: 5 * second, User: 3 * second}, {Wall: 3 * second, User: 3 * second}},
		},
	}, 2); err != nil {
		t.Fatal(err)
	}
	want := strings.TrimPrefix(`
cold pull              time    user  kernel  registry     rest    disk   written  decompression   floor  time ÷ floor  set by
8 layers: stock      3.00 s  1.00 s  400 ms    100 ms        0  500 ms  338.0 MB         200 ms  750 ms          4.00  processors
8 layers: imagepin   900 ms  1.00 s  450 ms    100 ms  20.0 ms  600 ms  338.0 MB         100 ms  775 ms          1.16  processors
one layer: imagepin  4.00 s  3.00 s       0         0        0       –         –         2.00 s  2.00 s          2.00  decompression
`, "\n")
	if got := out.String(); got != want {
		t.Errorf("got the table\n%s\nwant\n%s", got, want)
	}
	out.Reset()
	if err := sharesTable(&out, nil, 2); err != nil || out.Len() > 0 {
		t.Errorf("without pulls: got %q, %v, want nothing", out.String(), err)
	}
}

// TestDecompression measures a small image, once.
func TestDecompression(t *testing.T) {
	small := tree{layers: 2, files: 5, size: 64 << 10, seed: 1}
	of, err := newBase(t.Context(), small)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{bases: map[tree]*base{small: of}, decompressions: map[tree]imageTimes{}}
	got, err := coldPull{tree: small, limited: true}.imageTimes(b)
	if err != nil || got.Stock <= 0 || got.Ours <= 0 || got.Download <= 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	again, err := coldPull{tree: small}.imageTimes(b)
	if want := (imageTimes{Stock: got.Stock, Ours: got.Ours}); err != nil || again != want {
		t.Errorf("again: got %+v, %v, want %+v", again, err, want)
	}
	of.layers[0].packed, of.layers[1].packed = [][]byte{[]byte("\x1f\x8b\x08 broken")}, nil
	if _, err := (&bench{bases: b.bases, decompressions: map[tree]imageTimes{}}).decompression(small); err == nil {
		t.Error("no error for a layer that is broken")
	}
}
