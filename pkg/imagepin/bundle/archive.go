package bundle

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// archive reads the entries of a bundle in their order. The caller knows the name and the size of the next one.
type archive struct {
	r     *bufio.Reader
	close func()
	// frames are those of a compressed archive.
	frames *frames
	skip   func(n int64) error // nil if the archive can only be read
	left   int64               // of the content of the current entry
	pad    int64               // after it
}

const readSize = 1 << 20

// openArchive starts to read a file of size bytes at its first byte. It decides by the content whether it is compressed.
func openArchive(f io.ReaderAt, size int64) (*archive, error) {
	file := io.NewSectionReader(f, 0, size)
	buffer := int(min(size, readSize))
	magic := make([]byte, len(zstdMagic))
	if n, err := io.ReadFull(io.NewSectionReader(f, 0, size), magic); err != nil {
		return nil, fmt.Errorf("it has only %d bytes: %w", n, err)
	}
	if !bytes.Equal(magic, zstdMagic) {
		a := &archive{r: bufio.NewReaderSize(file, buffer), close: func() {}}
		a.skip = func(n int64) error {
			buffered := min(n, int64(a.r.Buffered()))
			if _, err := a.r.Discard(int(buffered)); err != nil {
				return err
			}
			if n -= buffered; n == 0 {
				return nil
			}
			at, err := file.Seek(n, io.SeekCurrent)
			if err == nil && at > size {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		return a, nil
	}
	compressed := newFrames(bufio.NewReaderSize(file, buffer))
	decoder, err := zstd.NewReader(compressed, zstd.WithDecoderConcurrency(1),
		zstd.WithDecoderMaxWindow(FrameSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	limited := &limitedExpansion{r: decoder, left: limitOf(size)}
	return &archive{r: bufio.NewReaderSize(limited, readSize/4), close: decoder.Close, frames: compressed}, nil
}

// limitOf returns the maximum size of an archive that is compressed to size bytes.
func limitOf(size int64) int64 {
	if size > (maxSize-expansionMinimum)/expansion {
		return maxSize
	}
	return size*expansion + expansionMinimum
}

// limitedExpansion fails after too many bytes.
type limitedExpansion struct {
	r    io.Reader
	left int64
}

func (l *limitedExpansion) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, fmt.Errorf("the archive has more than %d bytes for each compressed byte", expansion)
	}
	return n, err
}

// next goes to the next entry, which must have this name and size.
func (a *archive) next(name string, size int64) error {
	if err := a.finish(); err != nil {
		return err
	}
	want, err := header(name, size)
	if err != nil {
		return &entryError{name, err}
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(a.r, got); err != nil {
		if n == 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return &entryError{name, err}
	}
	if !bytes.Equal(got, want) {
		return &entryError{name, mismatch(got, name, size)}
	}
	a.left, a.pad = size, padding(size)
	return nil
}

// nextUnsized is next for an entry of at most limit bytes. It returns its size.
func (a *archive) nextUnsized(name string, limit int64) (int64, error) {
	if err := a.finish(); err != nil {
		return 0, err
	}
	block, err := a.r.Peek(tarBlock)
	if err != nil {
		return 0, &entryError{name, err}
	}
	h, err := tar.NewReader(bytes.NewReader(block)).Next()
	if err != nil {
		return 0, &entryError{name, fmt.Errorf("its header: %w", err)}
	}
	if h.Size < 0 || h.Size > limit {
		return 0, &entryError{name, fmt.Errorf("it has %d bytes, the limit is %d", h.Size, limit)}
	}
	return h.Size, a.next(name, h.Size)
}

// mismatch describes how a header differs from that of a name and a size.
func mismatch(block []byte, name string, size int64) error {
	if bytes.Equal(block[:tarBlock], trailer[:tarBlock]) {
		return errors.New("it is missing, the archive ends before it")
	}
	h, err := tar.NewReader(io.MultiReader(bytes.NewReader(block), bytes.NewReader(trailer))).Next()
	switch {
	case err != nil:
		return fmt.Errorf("its header: %w", err)
	case h.Name != name:
		return fmt.Errorf("the archive has the entry %.200q in its place", h.Name)
	case h.Typeflag != tar.TypeReg:
		return fmt.Errorf("it is not a regular file, but has the type %q", h.Typeflag)
	case h.Size != size:
		return fmt.Errorf("it has %d bytes, want %d", h.Size, size)
	}
	return errors.New("its header differs from that of a bundle, for example in the time, the owner or the format")
}

// Read reads the content of the current entry.
func (a *archive) Read(p []byte) (int, error) {
	if a.left == 0 {
		return 0, io.EOF
	}
	n, err := a.r.Read(p[:min(int64(len(p)), a.left)])
	a.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// finish goes to the end of the current entry.
func (a *archive) finish() error {
	if a.skip != nil && a.left > readSize {
		if err := a.skip(a.left); err != nil {
			return err
		}
		a.left = 0
	}
	if _, err := io.Copy(io.Discard, a); err != nil {
		return err
	}
	for ; a.pad > 0; a.pad-- {
		switch b, err := a.r.ReadByte(); {
		case errors.Is(err, io.EOF):
			return io.ErrUnexpectedEOF
		case err != nil:
			return err
		case b != 0:
			return errors.New("there is data after the end of an entry")
		}
	}
	return nil
}

// end checks that the archive ends after the current entry, and the file too.
func (a *archive) end() error {
	if err := a.finish(); err != nil {
		return err
	}
	got := make([]byte, len(trailer))
	if _, err := io.ReadFull(a.r, got); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("the end of the archive: %w", err)
	}
	if !bytes.Equal(got, trailer) {
		if h, err := tar.NewReader(bytes.NewReader(got)).Next(); err == nil {
			return &entryError{h.Name, errors.New("nothing refers to it")}
		}
		return errors.New("there is data after the last entry")
	}
	switch _, err := a.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("after the end of the archive: %w", err)
	}
	return errors.New("there is data after the end of the archive")
}

// sameFile reports an error if a file differs from what it was when it was opened.
func sameFile(f *os.File, path string, was os.FileInfo) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	at, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(was, now) || !os.SameFile(was, at) || was.Size() != now.Size() || !was.ModTime().Equal(now.ModTime()) {
		return errors.New("the file changed while it was read")
	}
	return nil
}
