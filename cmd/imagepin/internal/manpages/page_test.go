package manpages

import (
	"strings"
	"testing"

	"github.com/urfave/cli/v3"
)

// TestDate checks that the date on the pages is that of the source, if it is known.
func TestDate(t *testing.T) {
	for seconds, want := range map[string]string{"": "", "x": "", "1767312000": "2026-01-02"} {
		t.Setenv("SOURCE_DATE_EPOCH", seconds)
		if got := date(); got != want {
			t.Errorf("%q: got %q, want %q", seconds, got, want)
		}
	}
}

// TestTextIsNotARequest checks that roff does not read text as a request.
func TestTextIsNotARequest(t *testing.T) {
	text := page([]*cli.Command{{Name: "x", Usage: "a 'b' \"c\"", Description: ".so /etc/passwd\n'tis\n\\fBno\\fR"}}, "1", "")
	for _, want := range []string{"\n\\&.so /etc/passwd\n", "\n\\&\\(aqtis\n", "\n\\efBno\\efR\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q in\n%s", want, text)
		}
	}
}
