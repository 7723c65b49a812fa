package imagepin

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxErrorText is the length, in bytes, that no text of an error exceeds,
// whether a caller gets it or a log.
const MaxErrorText = 4 << 10

// Bound cuts a text that is longer than limit bytes in its middle, and notes
// there how much is cut: the beginning says what happened, and the end what to
// do about it. It cuts between runes, and replaces bytes that are no UTF-8.
func Bound(text string, limit int) string {
	const noteLength = len("[… 9223372036854775807 bytes cut …]")
	if len(text) > limit {
		room := max(limit-noteLength, 0)
		head, tail := before(text, room*3/4), after(text, room-room*3/4)
		text = fmt.Sprintf("%s[… %d bytes cut …]%s", head, len(text)-len(head)-len(tail), tail)
	}
	return strings.ToValidUTF8(text, "?")
}

// before gives up to n bytes of the beginning of a text, in whole runes.
func before(text string, n int) string {
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

// after gives up to n bytes of the end of a text, in whole runes.
func after(text string, n int) string {
	start := len(text) - n
	for start < len(text) && !utf8.RuneStart(text[start]) {
		start++
	}
	return text[start:]
}
