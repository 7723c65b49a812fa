package resolve

import (
	"context"
	"net/url"
	"regexp"

	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
)

// urlPattern finds URLs in text. What registries redirect to is often signed,
// and the signature stands in the query.
var urlPattern = regexp.MustCompile(`https?://[^\s"'<>]+`)

// Redact removes user information, queries and fragments from the URLs in a
// text.
func Redact(text string) string {
	return urlPattern.ReplaceAllStringFunc(text, func(raw string) string {
		u, err := url.Parse(raw)
		if err != nil {
			return "<url>"
		}
		u.User, u.RawQuery, u.Fragment = nil, "", ""
		return u.String()
	})
}

// RedactError is err with a text that [Redact] has been over.
func RedactError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if clean := Redact(text); clean != text {
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

// withRedactedLog gives containerd's resolver a logger that passes everything
// through [Redact]: it logs the errors of every host that it tries.
func withRedactedLog(ctx context.Context) context.Context {
	entry := log.G(ctx)
	logger := &logrus.Logger{
		Out:       entry.Logger.Out,
		Hooks:     entry.Logger.Hooks,
		Formatter: redactingFormatter{entry.Logger.Formatter},
		Level:     entry.Logger.GetLevel(),
		ExitFunc:  entry.Logger.ExitFunc,
	}
	return log.WithLogger(ctx, logrus.NewEntry(logger).WithFields(entry.Data))
}

type redactingFormatter struct {
	logrus.Formatter
}

func (f redactingFormatter) Format(e *logrus.Entry) ([]byte, error) {
	b, err := f.Formatter.Format(e)
	if err != nil {
		return nil, err
	}
	return []byte(Redact(string(b))), nil
}
