package imagepin

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxErrorText is the maximum length, in bytes, of the text of an error, both in a reply to a caller and in a log.
const MaxErrorText = 4 << 10

// MaxLogText is the maximum length, in bytes, of a text in a log line that a registry, an image or a caller controls. The
// rest of the 4 KB of a line is for the other fields.
const MaxLogText = 2 << 10

// BoundError returns an error whose text has at most limit bytes, see [Bound]. It unwraps to err.
func BoundError(err error, limit int) error { return boundedError{err, limit} }

type boundedError struct {
	error
	limit int
}

func (e boundedError) Error() string { return Bound(e.error.Error(), e.limit) }

// Unwrap returns the error.
func (e boundedError) Unwrap() error { return e.error }

// Bound shortens a text that is longer than limit bytes. It cuts the middle and writes the number of bytes cut in its
// place, because the beginning says what happened and the end says what to do about it. It cuts between runes and
// replaces invalid UTF-8.
func Bound(text string, limit int) string {
	const noteLength = len("[… 9223372036854775807 bytes cut …]")
	if len(text) > limit {
		room := max(limit-noteLength, 0)
		head, tail := before(text, room*3/4), after(text, room-room*3/4)
		text = fmt.Sprintf("%s[… %d bytes cut …]%s", head, len(text)-len(head)-len(tail), tail)
	}
	return strings.ToValidUTF8(text, "?")
}

// before returns up to n bytes from the beginning of text, in whole runes.
func before(text string, n int) string {
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// after returns up to n bytes from the end of text, in whole runes.
func after(text string, n int) string {
	start := len(text) - n
	for start < len(text) && !utf8.RuneStart(text[start]) {
		start++
	}
	return text[start:]
}
