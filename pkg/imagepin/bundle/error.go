package bundle

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// invalid returns an [imagepin.InvalidBundle] error (ErrInvalidArgument) of a file. It returns the errors of a canceled context,
// and InvalidBundle errors, unchanged.
func invalid(path string, err error) error {
	var known *imagepin.Error
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &known) && known.Reason == imagepin.InvalidBundle {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the file is truncated: %w", err)
	}
	e := &imagepin.Error{
		Reason: imagepin.InvalidBundle, Class: errdefs.ErrInvalidArgument, Message: fmt.Sprintf("%.512q", path), Err: err,
		Hint: "Write it again with: imagepin bundle LOCK -o FILE",
	}
	if c := (*compressedError)(nil); errors.As(err, &c) {
		e.Hint = c.hint()
	}
	return e
}

// entryError names the entry of an archive at which reading failed.
type entryError struct {
	name string
	err  error
}

func (e *entryError) Error() string { return fmt.Sprintf("entry %q: %v", e.name, e.err) }
func (e *entryError) Unwrap() error { return e.err }
