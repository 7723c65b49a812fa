package imagepin

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestReferenceLength checks that a name that is too long is not parsed, and that the error names its beginning and its length.
func TestReferenceLength(t *testing.T) {
	longest := strings.Repeat("h", 253) + ".example:65535/" + strings.Repeat("p", 200) + ":" + strings.Repeat("t", 128) + "@sha256:" + strings.Repeat("0", 64)
	if _, err := ParseReference(longest); err != nil {
		t.Errorf("a reference of %d bytes: %v", len(longest), err)
	}
	for _, length := range []int{MaxReference + 1, 1 << 20, 64 << 20} {
		_, err := ParseReference("shop/web:" + strings.Repeat("x", length-len("shop/web:")))
		var known *Error
		if !errors.As(err, &known) || known.Reason != InvalidReference || !errdefs.IsInvalidArgument(err) {
			t.Fatalf("%d bytes: got %v", length, err)
		}
		if text := err.Error(); len(text) > 512 || !strings.Contains(text, `"shop/web:xxx`) || !strings.Contains(text, "a reference has at most 1024") {
			t.Errorf("%d bytes: got %q", length, text)
		}
	}
}

func TestInRepository(t *testing.T) {
	for ref, want := range map[string]bool{
		"registry.example:5000/team/app:v1":          true,
		"registry.example:5000/team/app@sha256:abcd": true,
		"registry.example:5000/team/app":             true,
		"registry.example:5000/team/app2:v1":         false,
		"registry.example:5000/team/app/sub:v1":      false,
		"registry.example:5000/team:v1":              false,
		"registry.example/team/app:v1":               false,
	} {
		if got := InRepository(ref, "registry.example:5000/team/app"); got != want {
			t.Errorf("InRepository(%q): got %v, want %v", ref, got, want)
		}
	}
}
