package transcript

import (
	"regexp"
	"strings"
)

// masks replace what differs between two runs.
var masks = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`\b(\d+[dhms]){1,2} ago`), "AGO"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?(µs|ms|s)\b`), "DURATION"},
	{regexp.MustCompile(`("(seconds|nanos)": )\d+`), "${1}NUMBER"},
	{regexp.MustCompile(`\b127\.0\.0\.1:\d+`), "ADDRESS"},
	{regexp.MustCompile(`(\b[0-9a-f]{12})([0-9a-f]{52}\b|…)`), "$1"},
	{regexp.MustCompile(`(?m)[ \t]+$`), ""},
	{regexp.MustCompile(`[ \t]{2,}`), "  "},
}

func masked(s string) string {
	for _, m := range masks {
		s = m.pattern.ReplaceAllString(s, m.with)
	}
	return strings.TrimSpace(s)
}

// anyLines is a line of a document that matches any number of lines.
const anyLines = "[...]"

// Equal reports whether an output is that of a document. Times, also those of protocol buffers in JSON, durations, ports of
// 127.0.0.1, the width of columns, and the digits of a digest after the twelfth may differ.
func Equal(want, got string) bool {
	return equalLines(strings.Split(masked(want), "\n"), strings.Split(masked(got), "\n"))
}

func equalLines(want, got []string) bool {
	for len(want) > 0 {
		if strings.TrimSpace(want[0]) == anyLines {
			for skip := range len(got) + 1 {
				if equalLines(want[1:], got[skip:]) {
					return true
				}
			}
			return false
		}
		if len(got) == 0 || want[0] != got[0] {
			return false
		}
		want, got = want[1:], got[1:]
	}
	return len(got) == 0
}

var fullDigest = regexp.MustCompile(`\b(sha256:[0-9a-f]{12})[0-9a-f]{52}\b`)

// Shorten replaces the end of each digest by "…".
func Shorten(s string) string { return fullDigest.ReplaceAllString(s, "$1…") }

var shortDigest = regexp.MustCompile(`\bsha256:([0-9a-f]{12})…`)

// Expand replaces each shortened digest in a command by the digest in seen that begins with it.
func Expand(command, seen string) string {
	return shortDigest.ReplaceAllStringFunc(command, func(short string) string {
		start := strings.TrimSuffix(short, "…")
		for _, d := range allDigests.FindAllString(seen, -1) {
			if strings.HasPrefix(d, start) {
				return d
			}
		}
		return short
	})
}

var allDigests = regexp.MustCompile(`\bsha256:[0-9a-f]{64}\b`)
