package measure

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, tc := range []struct {
		of   []float64
		want float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 9}, 3}} {
		if got := Median(tc.of); got != tc.want {
			t.Errorf("Median(%v): got %v, want %v", tc.of, got, tc.want)
		}
	}
}

func TestQuantile(t *testing.T) {
	all := []float64{40, 10, 30, 20}
	for q, want := range map[float64]float64{0.01: 10, 0.25: 10, 0.5: 20, 0.51: 30, 0.99: 40, 1: 40} {
		if got := Quantile(all, q); got != want {
			t.Errorf("Quantile(%v, %v): got %v, want %v", all, q, got, want)
		}
	}
	if got := Quantile(nil, 0.5); got != 0 {
		t.Errorf("Quantile of no numbers: got %v, want 0", got)
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 123 * time.Microsecond: "0.12 ms", 9_870 * time.Microsecond: "9.87 ms", 45_600 * time.Microsecond: "45.6 ms",
		789 * time.Millisecond: "789 ms", 1_234 * time.Millisecond: "1.23 s", 12_340 * time.Millisecond: "12.3 s", -300 * time.Microsecond: "-0.30 ms",
	} {
		if got := Duration(d); got != want {
			t.Errorf("Duration(%d): got %q, want %q", d, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	var out bytes.Buffer
	if err := Table(&out, [][]string{{"name", "n", "note"}, {"µ", "12", "x"}}, true); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "name   n  note\nµ     12  x\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	out.Reset()
	if err := Table(&out, [][]string{{"name", "note"}, {"µ", "x"}}, false); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "name  note\nµ        x\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestPaste(t *testing.T) {
	doc, file := filepath.Join(t.TempDir(), "doc"), filepath.Join(t.TempDir(), "table")
	for path, text := range map[string]string{doc: "a\n<!-- t: begin -->\nold\n<!-- t: end -->\nb\n", file: "x\n\ny\n"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := Paste(doc, "t", file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	if want := "a\n<!-- t: begin -->\n\n    x\n\n    y\n\n<!-- t: end -->\nb\n"; string(got) != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Paste(doc, "t", file); err != nil {
		t.Fatal(err)
	}
	if got, err = os.ReadFile(doc); err != nil {
		t.Fatal(err)
	}
	if want := "a\n<!-- t: begin -->\n<!-- t: end -->\nb\n"; string(got) != want {
		t.Errorf("empty file: got\n%s\nwant\n%s", got, want)
	}
	if Paste(doc, "other", file) == nil {
		t.Error("a document without the comments is not an error")
	}
}

// TestProcess reads the processor time and the memory of this process.
func TestProcess(t *testing.T) {
	pid := os.Getpid()
	if _, err := CPU(pid); err != nil {
		t.Error(err)
	}
	total, own, err := RSS(pid)
	if err != nil || own <= 0 || total < own {
		t.Errorf("got RSS %v and %v, %v", total, own, err)
	}
	if resident, err := Resident(pid); err != nil || resident < total/2 || resident > total*2 {
		t.Errorf("got %v resident bytes, %v, want about %v", resident, err, total)
	}
	if _, err := Resident(-1); err == nil {
		t.Error("no process: got no error")
	}
	if read, err := Read(pid); err != nil || read <= 0 {
		t.Errorf("got %v bytes read, %v", read, err)
	}
	if err := ResetPeakRSS(pid); err != nil {
		t.Error(err)
	}
	if peak, err := PeakRSS(pid); err != nil || peak <= 0 {
		t.Errorf("got peak RSS %v, %v", peak, err)
	}
}
