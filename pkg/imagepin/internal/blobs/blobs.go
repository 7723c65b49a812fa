// Package blobs checks the files of blobs. containerd's metadata has a record of each blob. Only opening its file shows
// whether the file exists and is complete and unchanged.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
)

// Damage is a blob whose file does not match its record in containerd's metadata. It is an errdefs.ErrDataLoss.
type Damage struct {
	Digest digest.Digest
	// Problem describes the damage. It continues "its file ...".
	Problem string
	// Missing is true if the file does not exist.
	Missing bool
}

// Error implements error.
func (d *Damage) Error() string { return fmt.Sprintf("content %s: its file %s", d.Digest, d.Problem) }

// Unwrap returns the class.
func (d *Damage) Unwrap() error { return errdefs.ErrDataLoss }

// Checker is a content store with its own implementation of [Check].
type Checker interface {
	// Check implements the function [Check].
	Check(ctx context.Context, d digest.Digest, size int64) error
}

// Check checks that the file of a blob that the store has a record of exists and has size bytes. It does not read the
// file. The error is a [*Damage] if the file is damaged, and another error if that is unknown, for example because
// permission to open the file is denied.
func Check(ctx context.Context, store content.Store, d digest.Digest, size int64) error {
	if l, ok := store.(Checker); ok {
		return l.Check(ctx, d, size)
	}
	ra, err := store.ReaderAt(ctx, ocispec.Descriptor{Digest: d})
	if err != nil {
		return classify(ctx, d, err)
	}
	defer ra.Close()
	return sized(d, ra.Size(), size)
}

// CheckRemote is [Check] for a store that opens a file only when it is read, such as containerd's store over its socket.
// It reads the last byte.
func CheckRemote(ctx context.Context, store content.Provider, d digest.Digest, size int64) error {
	ra, err := store.ReaderAt(ctx, ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		return classify(ctx, d, err)
	}
	defer ra.Close()
	n, err := ra.ReadAt(make([]byte, 1), max(size-1, 0))
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return classify(ctx, d, err)
	case size > 0 && n == 0:
		return short(d, size)
	}
	return nil
}

// Exists reports whether a store has a blob, both its record and its undamaged file. It fails if that is unknown.
func Exists(ctx context.Context, store content.Store, d digest.Digest) (bool, error) {
	found, err := look(ctx, store, d)
	return found.Intact, err
}

// chunk is the number of bytes that are read at once.
const chunk = 1 << 20

// Verify reads a blob of size bytes and compares it with its digest. It calls read before each part, with the number of
// bytes, and stops if read returns an error. read may be nil. Errors are those of [Check].
func Verify(ctx context.Context, store content.Provider, d digest.Digest, size int64, read func(n int64) error) error {
	if err := d.Validate(); err != nil {
		return err
	}
	ra, err := store.ReaderAt(ctx, ocispec.Descriptor{Digest: d, Size: size})
	if err != nil {
		return classify(ctx, d, err)
	}
	defer ra.Close()
	if err := sized(d, ra.Size(), size); err != nil {
		return err
	}
	verifier := d.Verifier()
	part := make([]byte, min(chunk, max(size, 1)))
	for at := int64(0); at < size; {
		want := min(int64(len(part)), size-at)
		if err := ctx.Err(); err != nil {
			return err
		}
		if read != nil {
			if err := read(want); err != nil {
				return err
			}
		}
		n, err := ra.ReadAt(part[:want], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return classify(ctx, d, err)
		}
		if n == 0 {
			return short(d, size)
		}
		_, _ = verifier.Write(part[:n]) // a hash never fails
		at += int64(n)
	}
	if size == 0 {
		if err := CheckRemote(ctx, store, d, size); err != nil {
			return err
		}
	}
	if !verifier.Verified() {
		return &Damage{Digest: d, Problem: "does not match its digest"}
	}
	return nil
}

func sized(d digest.Digest, have, want int64) error {
	if have != want {
		return &Damage{Digest: d, Problem: fmt.Sprintf("has %d bytes instead of %d", have, want)}
	}
	return nil
}

func short(d digest.Digest, size int64) error {
	return &Damage{Digest: d, Problem: fmt.Sprintf("has fewer than %d bytes", size)}
}

// classify distinguishes a damaged file from a file whose state is unknown. An error that crosses containerd's socket
// keeps only its text.
func classify(ctx context.Context, d digest.Digest, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errdefs.IsNotFound(err):
		return &Damage{Digest: d, Problem: "is gone", Missing: true}
	case errno.Is(err, syscall.EIO):
		return &Damage{Digest: d, Problem: "cannot be read: " + syscall.EIO.Error()}
	case errno.Is(err, syscall.EISDIR):
		return &Damage{Digest: d, Problem: "is a directory"}
	}
	return fmt.Errorf("content %s: cannot read its file: %w", d, err)
}
