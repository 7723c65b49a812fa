package runtimeplatform

import (
	"fmt"
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestParseOSVersion(t *testing.T) {
	for text, want := range map[string]osVersion{
		"10.0.17763":           {10, 0, 17763, 0},
		"10.0.17763.1":         {10, 0, 17763, 1},
		"10.0.17763.0006":      {10, 0, 17763, 6},
		"10.0.17763.":          {10, 0, 17763, 0},
		"10.0.17763.x":         {10, 0, 17763, 0},
		"10.0.17763.1.2":       {10, 0, 17763, 1},
		"6.3.9600.20000":       {6, 3, 9600, 20000},
		"255.255.65535.999999": {255, 255, 65535, 999999},
	} {
		if got, ok := parseOSVersion(text); !ok || got != want {
			t.Errorf("%q: got %v, %t; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "10", "10.0", "10.0.", "..", "...", "10..17763", "a.0.17763", "10.a.17763", "10.0.a",
		"-10.0.17763", "+10.0.17763", "10.0.65536", "256.0.17763", "10.256.17763", " 10.0.17763", "0.0.0", "0.0.0.1", "ltsc2022",
	} {
		if got, ok := parseOSVersion(text); ok || got != (osVersion{}) {
			t.Errorf("%q: got %v, %t; want none", text, got, ok)
		}
	}
}

func TestCompareOSVersion(t *testing.T) {
	// Each version is less than the next, which is not the order of their texts.
	ascending := []string{
		"", "6.3.9600.20000", "10.0.9200.17609", "10.0.14393.0", "10.0.17763", "10.0.17763.9", "10.0.17763.999",
		"10.0.17763.1000", "10.0.20348.1", "10.0.26100.1", "10.1.1.1", "11.0.0.1",
	}
	for i, a := range ascending {
		for j, b := range ascending {
			v, _ := parseOSVersion(a)
			w, _ := parseOSVersion(b)
			if got := v.compare(w); got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("compare(%q, %q): got %d, want the order of %d and %d", a, b, got, i, j)
			}
		}
	}
}

func FuzzParseOSVersion(f *testing.F) {
	for _, s := range []string{"", "10.0.17763", "10.0.17763.1000", "10.0", "...", "0.0.0.1", "256.0.1", "10.0.65536", "+1.0.1", "1.1.1.x.y", "10.0.1_0", "010.00.017763.01"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := parseOSVersion(s)
		if ok {
			text := fmt.Sprintf("%d.%d.%d.%d", v.major, v.minor, v.build, v.revision)
			if again, ok := parseOSVersion(text); !ok || again != v {
				t.Errorf("%q: text %s parses as %v, %t", s, text, again, ok)
			}
		} else if v != (osVersion{}) {
			t.Errorf("%q: got %v for an invalid version, want none", s, v)
		}

		// A matcher with a version does not match two major versions. If it matches both, containerd ignores the
		// version.
		m := platforms.NewMatcher(ocispec.Platform{OS: windows, Architecture: "amd64", OSVersion: s})
		any := m.Match(ocispec.Platform{OS: windows, Architecture: "amd64", OSVersion: "1.0.1"}) &&
			m.Match(ocispec.Platform{OS: windows, Architecture: "amd64", OSVersion: "2.0.1"})
		if ok == any {
			t.Errorf("%q: got valid %t, but containerd matches any version: %t", s, ok, any)
		}
	})
}
