package bundle

import (
	"bytes"
	"context"
	"errors"
	"hash/crc32"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
)

// resume determines how much of the file is right, at most to an offset in the archive, and truncates it after that.
func (w *writer) resume(ctx context.Context, to int64) error {
	info, err := w.file.Stat()
	if err != nil {
		return err
	}
	limit, ends := min(info.Size(), to), []int64(nil)
	if w.compress {
		ends = completeFrames(w.file, info.Size())
		limit = min(int64(len(ends))*FrameSize, to/FrameSize*FrameSize)
	}
	end := func(at int64) int64 { // in the file
		if w.compress && at > 0 {
			return ends[at/FrameSize-1]
		}
		return at
	}
	for {
		r, closeReader, err := w.content(end(limit))
		if err != nil {
			return err
		}
		good, verifier, err := w.plan.check(ctx, r, limit, w.resumed)
		closeReader()
		if err != nil {
			return err
		}
		if good == limit {
			w.at, w.verifier = limit, verifier
			break
		}
		w.plan.result.Discarded = true
		if limit = good; w.compress {
			limit = good / FrameSize * FrameSize
		}
	}
	w.plan.result.Resumed = w.at
	if err := w.file.Truncate(end(w.at)); err != nil {
		return err
	}
	if w.compress {
		w.sum = crc32.New(castagnoli)
		if _, err := io.Copy(w.sum, io.NewSectionReader(w.file, 0, end(w.at))); err != nil {
			return err
		}
	}
	_, err = w.file.Seek(end(w.at), io.SeekStart)
	return err
}

func (w *writer) resumed(s segment, offset int64) { w.progress(s.blob.desc, offset, true) }

// content reads the archive in the first bytes of the file.
func (w *writer) content(size int64) (io.Reader, func(), error) {
	file := io.NewSectionReader(w.file, 0, size)
	if !w.compress {
		return file, func() {}, nil
	}
	decoder, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(FrameSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, nil, err
	}
	return decoder, decoder.Close, nil
}

// check compares the first limit bytes of an archive with the plan. It returns how many are right, and the state of the blob
// that the limit is in. A blob is right if its digest is; its bytes before the limit can be wrong, then its end shows it.
func (p *plan) check(ctx context.Context, r io.Reader, limit int64, done func(segment, int64)) (int64, digest.Verifier, error) {
	buffer := make([]byte, readSize)
	for _, s := range p.segments {
		if s.at >= limit {
			return limit, nil, nil
		}
		part := min(s.size, limit-s.at)
		if s.blob == nil {
			got, err := readAll(r, part)
			if err != nil || !bytes.Equal(got, s.data[:part]) {
				return s.at, nil, nil
			}
			continue
		}
		verifier := s.blob.desc.Digest.Verifier()
		for offset := int64(0); offset < part; {
			if err := ctx.Err(); err != nil {
				return 0, nil, context.Cause(ctx)
			}
			n, err := r.Read(buffer[:min(int64(len(buffer)), part-offset)])
			offset += int64(n)
			_, _ = verifier.Write(buffer[:n]) // a hash accepts all writes
			if err != nil && offset < part {
				return s.at, nil, nil
			}
			done(s, offset)
		}
		if part < s.size {
			return limit, verifier, nil
		}
		if !verifier.Verified() {
			return s.at, nil, nil
		}
	}
	return limit, nil, nil
}

// completeFrames returns the ends in a file of its first zstd frames that are complete and have FrameSize bytes of content. It
// reads only their headers.
func completeFrames(f io.ReaderAt, size int64) []int64 {
	var ends []int64
	for at := int64(0); ; {
		end, content, err := frameEnd(f, at, size)
		if err != nil || content != FrameSize {
			return ends
		}
		ends = append(ends, end)
		at = end
	}
}

// frameEnd returns the end of the frame at an offset, and the size of its content.
func frameEnd(f io.ReaderAt, at, size int64) (end, content int64, err error) {
	var b [maxFrameHeader]byte
	n, err := f.ReadAt(b[:], at)
	if err != nil && !errors.Is(err, io.EOF) || n < frameMagicSize+1 {
		return 0, 0, io.ErrUnexpectedEOF
	}
	headerSize, err := frameHeaderSize(b[:])
	if err != nil {
		return 0, 0, err
	}
	content, checksum := frameContentSize(b[:]), b[frameMagicSize]&4 != 0
	at += int64(headerSize)
	for last := false; !last; {
		if _, err := f.ReadAt(b[:blockHeaderSize], at); err != nil {
			return 0, 0, err
		}
		var body int64
		if body, last, err = blockHeader(b[:]); err != nil {
			return 0, 0, err
		}
		at += blockHeaderSize + body
	}
	if checksum {
		at += frameChecksum
	}
	if at > size {
		return 0, 0, io.ErrUnexpectedEOF
	}
	return at, content, nil
}

// openPartial opens a file to continue it. Only one process writes it at a time.
func openPartial(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
