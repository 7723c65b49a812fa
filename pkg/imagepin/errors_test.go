package imagepin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/containerd/errdefs"
)

func TestErrorText(t *testing.T) {
	for _, c := range []struct {
		err  Error
		want string
	}{
		{Error{Name: CannotPullImage}, "CannotPullImage"},
		{Error{Name: CannotPullImage, Ref: "r"}, "CannotPullImage: r"},
		{Error{Name: CannotPullImage, Ref: "r", For: "linux/arm64 on native"}, "CannotPullImage: r for linux/arm64 on native"},
		{Error{Name: NoMatchingPlatform, For: "a target without a reference", What: "it offers nothing"}, "NoMatchingPlatform: it offers nothing"},
		{Error{Name: CannotPullImage, Ref: "r", Err: io.EOF}, "CannotPullImage: r: EOF"},
		{
			Error{Name: PinnedName, Ref: "r", For: "t", What: "it happened", Do: "Mend it.", Err: io.EOF, Class: errdefs.ErrNotFound},
			"PinnedName: r for t: it happened: EOF\nMend it.",
		},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

// PinnedName stands for a name that does not exist yet.
const PinnedName Name = "PinnedName"

func TestErrorClasses(t *testing.T) {
	cause := fmt.Errorf("cause: %w", io.ErrUnexpectedEOF)
	var err error = &Error{Name: CannotPullImage, Class: errdefs.ErrUnavailable, Err: cause}
	wrapped := fmt.Errorf("pull: %w", err)
	for _, target := range []error{errdefs.ErrUnavailable, cause, io.ErrUnexpectedEOF} {
		if !errors.Is(wrapped, target) {
			t.Errorf("%v is not %v", wrapped, target)
		}
	}
	if errors.Is(wrapped, errdefs.ErrNotFound) {
		t.Error("matches a class that it does not have")
	}
	var e *Error
	if !errors.As(wrapped, &e) || e.Name != CannotPullImage {
		t.Errorf("as: %v", e)
	}
	if !errdefs.IsUnavailable(wrapped) || errdefs.Resolve(wrapped) != errdefs.ErrUnavailable {
		t.Errorf("class is %v", errdefs.Resolve(wrapped))
	}

	// What it was decided to be comes before what its cause was.
	twice := &Error{Name: CannotMakeReady, Class: errdefs.ErrUnavailable, Err: errdefs.ErrNotFound}
	if errdefs.Resolve(twice) != errdefs.ErrUnavailable {
		t.Errorf("class is %v", errdefs.Resolve(twice))
	}
	if bare := (&Error{Name: CannotPullImage}); len(bare.Unwrap()) != 0 {
		t.Errorf("unwraps to %v", bare.Unwrap())
	}
	if late := (&Error{Name: ManifestPullTimeout, Class: context.DeadlineExceeded}); !errors.Is(late, context.DeadlineExceeded) {
		t.Error("a timeout is not DeadlineExceeded")
	}
}
