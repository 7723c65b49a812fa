package config

import (
	"testing"
	"time"
)

func TestLookupInterval(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "0s": 0, "0": 0, "1s": time.Second, "6h": 6 * time.Hour} {
		got, err := Table{"lookup_interval": text}.Check()
		if err != nil || got.LookupInterval != want {
			t.Errorf("%q: got %s, %v, want %s", text, got.LookupInterval, err, want)
		}
	}
	if got, err := (Table{}).Check(); err != nil || got.LookupInterval != 0 {
		t.Errorf("the default is %s, %v, want 0", got.LookupInterval, err)
	}
}
