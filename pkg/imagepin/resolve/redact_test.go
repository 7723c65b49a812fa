package resolve

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/imagepin/imagepin/pkg/imagepin"
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
		"<https://h/p?sig=hush>":                 "<https://h/p",
		"https://h/%zz?sig=hush":                 "<url>",
		"https://u:hu/hush@h/p":                  "<url>",
		"https://u:hu'sh@h/p'":                   "https://h/p'",
		"https://h/p?a=<hush>'hush' x":           "https://h/p x",
		`{"u":"https://h/p?a=hush\u0026b=hush"}`: `{"u":"https://h/p"}`,
		`{"u":"https:\/\/h\/p?a=hush"}`:          `{"u":"https:\/\/h\/p"}`,
		`e="Head \"http://h/p\": EOF"`:           `e="Head \"http://h/p\": EOF"`,
		`e="Head \"http://h/p?t=hush\": EOF"`:    `e="Head \"http://h/p\": EOF"`,
		`e="Head \\\"http://u:hush@h\\\": EOF"`:  `e="Head \\\"http://h\\\": EOF"`,
		`Get "http://h/p"\nCheck`:                `Get "http://h/p"\nCheck`,
		`at http://h/p\nCheck the network`:       `at http://h/p\nCheck the network`,
	} {
		if got := redact(in); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

func TestRedactError(t *testing.T) {
	if RedactError(nil) != nil {
		t.Error("RedactError(nil) is not nil")
	}
	if clean := errors.New("clean"); RedactError(clean) != clean {
		t.Error("RedactError changed an error without a secret")
	}
	inner := &url.Error{Op: "Get", URL: "https://h/p?sig=hush", Err: io.ErrUnexpectedEOF}
	err := RedactError(fmt.Errorf("fetch: %w", inner))
	if strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "https://h/p") {
		t.Errorf("got %v, want https://h/p without the signature", err)
	}
	var u *url.Error
	if !errors.Is(err, io.ErrUnexpectedEOF) || !errors.As(err, &u) {
		t.Error("the error does not wrap its cause")
	}
}

func TestRedactErrorIsBounded(t *testing.T) {
	long := errors.New("https://u:hush@h/p: " + strings.Repeat("x", 1<<20))
	if text := RedactError(long).Error(); len(text) > imagepin.MaxErrorText || strings.Contains(text, "hush") || !strings.Contains(text, "bytes cut") {
		t.Errorf("text of %d bytes is not cut or not redacted: %.100s", len(text), text)
	}
}
