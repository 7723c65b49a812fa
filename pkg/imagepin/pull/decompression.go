package pull

import (
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/imagepin/imagepin/internal/upstream"
)

// isDecompression reports whether the text of an error is that of a decompressor about data that it does not accept. The
// errors of package zstd are values, but only their text crosses containerd's diff service, as for programs.
func isDecompression(text string) bool {
	return slices.ContainsFunc(decompressorTexts, func(part string) bool { return strings.Contains(text, part) }) ||
		slices.ContainsFunc(zstdErrors, func(err error) bool { return strings.Contains(text, err.Error()) })
}

// decompressorTexts are parts of what igzip and unpigz print, which containerd's decompressor uses if they are installed, and of
// errors of package zstd that are not values.
var decompressorTexts = []string{
	"igzip: Error invalid gzip header", "igzip: Error encountered while decompressing", "igzip: Error while decompressing",
	"does not contain a complete gzip file", "pigz: skipping: <stdin>",
	"reserved bit set on frame header", "corrupt block", "corrupt stream", "sequence decoder not defined", "unexpected literal count", "rle symbol",
	"output bigger than max block size", "bigger than current history", "extra bits on block",
}

var zstdErrors = []error{
	zstd.ErrReservedBlockType, zstd.ErrBlockTooSmall, zstd.ErrCompressedSizeTooBig, zstd.ErrUnexpectedBlockSize, zstd.ErrMagicMismatch,
	zstd.ErrWindowSizeExceeded, zstd.ErrWindowSizeTooSmall, zstd.ErrDecoderSizeExceeded, zstd.ErrUnknownDictionary,
	zstd.ErrFrameSizeExceeded, zstd.ErrFrameSizeMismatch, zstd.ErrCRCMismatch,
}

// transferError is an error of the transfer service. If several layers fail, it has the error of each, which is often the
// same.
type transferError struct{ error }

func newTransferError(err error) error {
	if err == nil {
		return nil
	}
	return transferError{err}
}

// Unwrap returns the error.
func (e transferError) Unwrap() error { return e.error }

// Error implements error. The text is one line, with each error once.
func (e transferError) Error() string {
	var all []string
	for line := range strings.Lines(e.error.Error()) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		known := slices.ContainsFunc(all, func(other string) bool { return strings.HasSuffix(other, line) })
		if line != upstream.Aborted && !known {
			all = append(all, line)
		}
	}
	return strings.Join(all, "; ")
}
