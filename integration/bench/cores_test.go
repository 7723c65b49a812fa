package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/measure"
)

func TestBusyDigit(t *testing.T) {
	for busy, want := range map[time.Duration]byte{0: '0', 10: '1', 49: '4', 50: '5', 99: '9', 100: '9', 130: '9'} {
		if got := busyDigit(busy, 100); got != want {
			t.Errorf("%d of 100: got %c, want %c", busy, got, want)
		}
	}
}

// TestCoresTable checks that the pull with the median time is shown, and that the table is empty without records.
func TestCoresTable(t *testing.T) {
	all := []*shares{{
		name:  "cold pull, 8 layers",
		stock: []turn{{Wall: 3, Cores: "00 11"}, {Wall: 2, Cores: "459 990"}, {Wall: 1, Cores: "2 3"}},
		ours:  []turn{{Wall: 1, Cores: "99 98"}},
	}, {name: "cold pull, one layer", ours: []turn{{Wall: 1}}}}
	var out bytes.Buffer
	if err := coresTable(&out, all); err != nil {
		t.Fatal(err)
	}
	want := `
cold pull           processor  busy, in tenths of each 50.0 ms
8 layers: stock             0  459
8 layers: stock             1  990
8 layers: imagepin          0  99
8 layers: imagepin          1  98
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	out.Reset()
	if err := coresTable(&out, all[1:]); err != nil || out.Len() > 0 {
		t.Errorf("without records: got %q, %v", out.String(), err)
	}
}

// TestWatchCores watches this machine, for longer and longer until there is a digit: a busy machine can be late.
func TestWatchCores(t *testing.T) {
	cores, err := measure.CoreTimes()
	if err != nil {
		t.Fatal(err)
	}
	for watched := 2 * coreStep; ; watched *= 2 {
		stop := watchCores()
		for start := time.Now(); time.Since(start) < watched; {
		}
		lines, err := stop()
		if err != nil || len(lines) != len(cores) {
			t.Fatalf("got %q, %v, want %d lines", lines, err, len(cores))
		}
		for _, line := range lines {
			if len(line) != len(lines[0]) || strings.Trim(line, "0123456789") != "" {
				t.Errorf("got %q, want a digit for each %s", lines, coreStep)
			}
		}
		if len(lines[0]) > 0 || t.Failed() {
			return
		}
	}
}
