package imagepin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{Reason: CannotPullImage}, "CannotPullImage"},
		{Error{Reason: CannotPullImage, Ref: "r"}, "CannotPullImage: r"},
		{Error{Reason: CannotPullImage, Ref: "r", Target: "linux/arm64 on native"}, "CannotPullImage: r for linux/arm64 on native"},
		{Error{Reason: NoMatchingPlatform, Target: "a target without a reference", Message: "it offers nothing"}, "NoMatchingPlatform: it offers nothing"},
		{Error{Reason: CannotPullImage, Ref: "r", Err: io.EOF}, "CannotPullImage: r: EOF"},
		{
			Error{Reason: PinnedName, Ref: "r", Target: "t", Message: "it happened", Hint: "Repair it.", Err: io.EOF, Class: errdefs.ErrNotFound},
			"PinnedName: r for t: it happened: EOF\nRepair it.",
		},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

// PinnedName is a reason that exists only in this test.
const PinnedName Reason = "PinnedName"

func TestErrorClasses(t *testing.T) {
	cause := fmt.Errorf("cause: %w", io.ErrUnexpectedEOF)
	var err error = &Error{Reason: CannotPullImage, Class: errdefs.ErrUnavailable, Err: cause}
	wrapped := fmt.Errorf("pull: %w", err)
	for _, target := range []error{errdefs.ErrUnavailable, cause, io.ErrUnexpectedEOF} {
		if !errors.Is(wrapped, target) {
			t.Errorf("errors.Is(%v, %v) is false", wrapped, target)
		}
	}
	if errors.Is(wrapped, errdefs.ErrNotFound) {
		t.Error("the error matches ErrNotFound")
	}
	var e *Error
	if !errors.As(wrapped, &e) || e.Reason != CannotPullImage {
		t.Errorf("errors.As: got %v", e)
	}
	if !errdefs.IsUnavailable(wrapped) || errdefs.Resolve(wrapped) != errdefs.ErrUnavailable {
		t.Errorf("got class %v, want ErrUnavailable", errdefs.Resolve(wrapped))
	}

	// The class of an error takes precedence over the class of its cause.
	twice := &Error{Reason: ImageNotReady, Class: errdefs.ErrUnavailable, Err: errdefs.ErrNotFound}
	if errdefs.Resolve(twice) != errdefs.ErrUnavailable {
		t.Errorf("got class %v, want ErrUnavailable", errdefs.Resolve(twice))
	}
	if bare := (&Error{Reason: CannotPullImage}); len(bare.Unwrap()) != 0 {
		t.Errorf("Unwrap: got %v, want nothing", bare.Unwrap())
	}
	if late := (&Error{Reason: ManifestPullTimeout, Class: context.DeadlineExceeded}); !errors.Is(late, context.DeadlineExceeded) {
		t.Error("the error does not match DeadlineExceeded")
	}
}

// TestErrorTextIsBounded checks that the text of an error is bounded and has the reason and the hint, whatever its
// fields and its cause contain.
func TestErrorTextIsBounded(t *testing.T) {
	for name, huge := range map[string]string{
		"letters": strings.Repeat("x", 1<<20), "runes": strings.Repeat("→", 1<<18), "no UTF-8": strings.Repeat("\xff", 1<<20), "short": strings.Repeat("y", 5000),
	} {
		for field, e := range map[string]*Error{
			"ref":     {Ref: huge},
			"target":  {Ref: "r", Target: huge},
			"message": {Ref: "r", Message: huge},
			"hint":    {Ref: "r", Hint: huge},
			"cause":   {Ref: "r", Err: errors.New(huge)},
			"all":     {Ref: huge, Target: huge, Message: huge, Err: fmt.Errorf("%s: %w", huge, errdefs.ErrNotFound)},
			"twice":   {Ref: huge, Target: huge, Message: huge, Hint: huge, Err: &Error{Reason: PinnedName, Ref: huge, Target: huge, Message: huge, Hint: huge, Err: errors.New(huge)}},
		} {
			e.Reason = CannotPullImage
			if e.Hint == "" {
				e.Hint = "Try this."
			}
			text := e.Error()
			if len(text) > MaxErrorText-256 || !utf8.ValidString(text) {
				t.Errorf("%s, %s: text of %d bytes is too long or is not UTF-8", name, field, len(text))
			}
			if !strings.HasPrefix(text, "CannotPullImage: ") || !strings.Contains(text, " bytes cut …]") || field != "hint" && field != "twice" && !strings.HasSuffix(text, "\nTry this.") {
				t.Errorf("%s, %s: reason, cut or hint is missing: %.200s", name, field, text)
			}
			if field == "all" && !errdefs.IsNotFound(e) {
				t.Error("the error does not match its cause")
			}
		}
	}
}

func TestBound(t *testing.T) {
	for _, c := range []struct {
		text  string
		limit int
		want  string
	}{
		{"", 0, ""},
		{"short", 5, "short"},
		{"a\xffb", 100, "a?b"},
		{strings.Repeat("a", 50) + strings.Repeat("b", 50), 99, strings.Repeat("a", 45) + "[… 40 bytes cut …]" + strings.Repeat("b", 15)},
		{strings.Repeat("a", 100), 10, "[… 100 bytes cut …]"},
		{strings.Repeat("é", 50), 99, strings.Repeat("é", 22) + "[… 42 bytes cut …]" + strings.Repeat("é", 7)},
	} {
		if got := Bound(c.text, c.limit); got != c.want {
			t.Errorf("Bound(%q, %d): got %q, want %q", c.text, c.limit, got, c.want)
		}
	}
	for n := range 200 {
		text := strings.Repeat("a→é", 100)
		if got := Bound(text, n); !utf8.ValidString(got) || len(got) > max(n, 40) {
			t.Errorf("limit %d: got %d bytes, or invalid UTF-8: %q", n, len(got), got)
		}
	}
}

// TestBoundError checks that a bounded error keeps its cause.
func TestBoundError(t *testing.T) {
	err := BoundError(fmt.Errorf("%s: %w", strings.Repeat("x", 1000), errdefs.ErrUnavailable), 100)
	if len(err.Error()) > 100 || !errdefs.IsUnavailable(err) {
		t.Errorf("got %v, want an Unavailable error of at most 100 bytes", err)
	}
}
