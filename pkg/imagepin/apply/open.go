package apply

import (
	"errors"
	"io"
	"path/filepath"
	"strings"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// File is a lock or a bundle in a file.
type File struct {
	Path string
	Lock *lock.Lock
	// Bundle is nil for a lock.
	Bundle *bundle.Bundle
}

// Close closes the file.
func (f *File) Close() error {
	if f.Bundle == nil {
		return nil
	}
	return f.Bundle.Close()
}

// Request returns the request to apply the file.
func (f *File) Request() Request {
	r := Request{Lock: f.Lock, Name: fileName(f.Path)}
	if f.Bundle != nil {
		r.Bundle = f.Bundle
	}
	return r
}

// fileName returns the name of a file as valid UTF-8: messages of the API allow nothing else.
func fileName(path string) string {
	return strings.ToValidUTF8(filepath.Base(path), "\uFFFD")
}

// Open opens a lock or a bundle, which it distinguishes by their content. It fails with InvalidLock and InvalidBundle (both
// ErrInvalidArgument), and with ErrNotFound if there is no such file.
func Open(path string) (*File, error) {
	isBundle, err := bundle.Is(path)
	if err != nil {
		return nil, err
	}
	if isBundle {
		b, err := bundle.Open(path)
		if err != nil {
			return nil, err
		}
		return &File{Path: path, Lock: b.Lock(), Bundle: b}, nil
	}
	l, err := readLock(path)
	if err != nil {
		return nil, err
	}
	return &File{Path: path, Lock: l}, nil
}

func readLock(path string) (*lock.Lock, error) {
	f, err := bundle.OpenRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, lock.MaxSize+1))
	if err != nil {
		return nil, err
	}
	l, err := lock.Parse(text)
	var known *imagepin.Error
	if errors.As(err, &known) {
		known.Message = fileName(path) + ": " + known.Message
	}
	return l, err
}
