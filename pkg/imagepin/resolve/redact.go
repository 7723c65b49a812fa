package resolve

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// urlPattern matches URLs in text: scheme and user information, host and path, query and fragment. Redirects of
// registries are often signed, and the signature is in the query.
var urlPattern = regexp.MustCompile(`(https?:\\?/\\?/)([^\s"/?#]*@)?([^\s"'<>?#]*)([?#][^\s"]*)?`)

// redact removes user information, queries and fragments from the URLs in text. It leaves the rest unchanged, including
// the backslash before a quote after a URL in text that is already quoted.
func redact(text string) string {
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

// cutEscape splits the backslashes off the end of a URL. They belong to the quote after the URL.
func cutEscape(found string) (rest, escape string) {
	rest = strings.TrimRight(found, `\`)
	return rest, found[len(rest):]
}

// RedactError returns err with a text that is redacted by [redact] and not longer than [imagepin.MaxErrorText].
func RedactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if clean := imagepin.Bound(redact(text), imagepin.MaxErrorText); clean != text {
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
