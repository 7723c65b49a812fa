package similar

import "testing"

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "abd", 1}, {"abc", "acb", 1}, {"amd46", "amd64", 1},
		{"kitten", "sitting", 3}, {"ca", "abc", 3},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("distance of %q and %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}

func TestClosest(t *testing.T) {
	known := []string{"native", "overlayfs", "arm", "arm64", "abd", "abc"}
	for name, want := range map[string]string{
		"overlay": "overlayfs", "overlafs": "overlayfs", "nativ": "native", "armm": "arm", "arm46": "arm64", "abe": "abc", "": "", "x": "", "nydus": "",
	} {
		if got := Closest(name, known); got != want {
			t.Errorf("closest to %q: got %q, want %q", name, got, want)
		}
	}
}
