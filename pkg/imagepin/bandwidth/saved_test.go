package bandwidth

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSavedRate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "download-rate")
	want := func(n int64, ok bool) {
		t.Helper()
		if got, found, err := LoadRate(path); got != n || found != ok || err != nil {
			t.Errorf("got %d, %t, %v, want %d, %t", got, found, err, n, ok)
		}
	}
	want(0, false)
	for _, n := range []int64{0, 1, 10 << 20} {
		if err := SaveRate(path, n); err != nil {
			t.Fatal(err)
		}
		want(n, true)
	}
	for range 2 {
		if err := RemoveRate(path); err != nil {
			t.Fatal(err)
		}
		want(0, false)
	}
	for _, wrong := range []string{"", "fast", "-1", "10 ", strings.Repeat("1", 33)} {
		if err := os.WriteFile(path, []byte(wrong), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := LoadRate(path); ok || err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%q: got %t, %v", wrong, ok, err)
		}
	}
}
