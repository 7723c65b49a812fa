package bundle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// The beginnings of an archive: that of a zstd frame, and the magic number of a tar header.
var (
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
	tarMagic  = []byte("ustar") // at tarMagicAt
)

const tarMagicAt = 257

// Is reports whether a file is an archive, compressed or not, and so can be a bundle. It fails with ErrNotFound if there is no
// such file.
func Is(path string) (bool, error) {
	f, err := OpenRegular(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, tarMagicAt+len(tarMagic))
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false, err
	}
	return otherCompression(head[:n]) != nil || n == len(head) && bytes.Equal(head[tarMagicAt:], tarMagic), nil
}

// OpenRegular opens a regular file: opening a pipe could block. It fails with ErrNotFound if there is no such file, and with
// [imagepin.InvalidRequest] (ErrInvalidArgument) if it is not a regular file.
func OpenRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, imagepin.Invalid("file", path, errors.New("is not a regular file"))
	}
	return os.Open(path)
}
