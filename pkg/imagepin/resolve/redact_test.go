package resolve

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
)

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"":                                       "",
		"no address at all: 1/2 ? #":             "no address at all: 1/2 ? #",
		"https://h/p":                            "https://h/p",
		"https://h/p?sig=hush&x=y":               "https://h/p",
		"https://u:hush@h:5000/p?q#f":            "https://h:5000/p",
		`Get "https://h/p?sig=hush": EOF`:        `Get "https://h/p": EOF`,
		"a http://h/?t=hush b https://i?u":       "a http://h/ b https://i",
		"<https://h/p?sig=hush>":                 "<https://h/p>",
		"https://h/%zz?sig=hush":                 "<url>",
		`{"u":"https://h/p?a=hush\u0026b=hush"}`: `{"u":"https://h/p"}`,
	} {
		if got := Redact(in); got != want {
			t.Errorf("%q became %q, not %q", in, got, want)
		}
	}
}

func TestRedactError(t *testing.T) {
	if RedactError(nil) != nil {
		t.Error("nothing became an error")
	}
	if clean := errors.New("clean"); RedactError(clean) != clean {
		t.Error("a clean error is wrapped")
	}
	inner := &url.Error{Op: "Get", URL: "https://h/p?sig=hush", Err: io.ErrUnexpectedEOF}
	err := RedactError(fmt.Errorf("fetch: %w", inner))
	if strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "https://h/p") {
		t.Errorf("says %v", err)
	}
	var u *url.Error
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &u) {
		t.Error("the cause is lost")
	}
}

// A registry redirects to a signed URL that cannot be reached: neither the
// error nor what containerd's resolver logs repeats the signature.
func TestNoSignatureInErrorsAndLogs(t *testing.T) {
	for name, f := range map[string]logrus.Formatter{"text": &logrus.TextFormatter{}, "json": &logrus.JSONFormatter{}} {
		t.Run(name, func(t *testing.T) {
			mirror, origin := newRegistry(t), newRegistry(t)
			away := func(w http.ResponseWriter, req *http.Request) bool {
				http.Redirect(w, req, "http://user:hush@127.0.0.1:1/blob?sig=hush&token=hush", http.StatusTemporaryRedirect)
				return true
			}
			mirror.answer, origin.answer = away, away
			r := newResolver(t, mirrors(mirror, origin))
			ctx, text := logged(t, f)
			_, err := r.Resolve(ctx, named(t, ref), Credential{Username: "u", Password: "hush"})
			if err == nil || strings.Contains(err.Error(), "hush") {
				t.Errorf("error: %v", err)
			}
			fetcher, ferr := r.Session(named(t, ref), Credential{}).Fetcher(ctx)
			if ferr != nil {
				t.Fatal(ferr)
			}
			if _, err := fetch(ctx, fetcher, origin.image.Layer); err == nil || strings.Contains(err.Error(), "hush") {
				t.Errorf("fetch: %v", err)
			}
			if got := text(); strings.Contains(got, "hush") || !strings.Contains(got, "127.0.0.1:1") || !strings.Contains(got, "field") {
				t.Errorf("log:\n%s", got)
			}
		})
	}
}
