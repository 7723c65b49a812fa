package resolve

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// urlPattern finds URLs in text: scheme and user information, host and path,
// and query and fragment. What registries redirect to is often signed, and the
// signature stands in the query.
var urlPattern = regexp.MustCompile(`(https?:\\?/\\?/)([^\s"/?#]*@)?([^\s"'<>?#]*)([?#][^\s"]*)?`)

// Redact removes user information, queries and fragments from the URLs in a
// text. The rest of the text stays as it is: also the backslash before a quote
// that ends a URL, where the text has been quoted already.
func Redact(text string) string {
	return urlPattern.ReplaceAllStringFunc(text, func(found string) string {
		found, escape := cutEscape(found)
		parts := urlPattern.FindStringSubmatch(found)
		clean, _ := cutEscape(parts[1] + parts[3])
		if _, err := url.Parse(strings.ReplaceAll(clean, `\`, "")); err != nil {
			return "<url>" + escape
		}
		return clean + escape
	})
}

// cutEscape cuts the backslashes off the end of a URL. They belong to the quote
// after it.
func cutEscape(found string) (rest, escape string) {
	rest = strings.TrimRight(found, `\`)
	return rest, found[len(rest):]
}

// RedactError is err with a text that [Redact] has been over, and that is no
// longer than [imagepin.MaxErrorText].
func RedactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if clean := imagepin.Bound(Redact(text), imagepin.MaxErrorText); clean != text {
		return redacted{text: clean, err: err}
	}
	return err
}

type redacted struct {
	text string
	err  error
}

func (r redacted) Error() string { return r.text }
func (r redacted) Unwrap() error { return r.err }
