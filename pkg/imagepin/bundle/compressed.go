package bundle

import (
	"bytes"
	"fmt"
)

// compressions are the formats, beside zstd, in which other tools compress a bundle: the beginning of a file, and the command
// that decompresses it.
var compressions = []struct{ magic, name, command string }{
	{"\x1f\x8b", "gzip", "gunzip -c"},
	{"\xfd7zXZ\x00", "xz", "xz -dc"},
	{"BZh", "bzip2", "bunzip2 -c"},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{"LZIP", "lzip", "lzip -dc"},
	{"PK\x03\x04", "zip", "unzip -p"},
	{string(zstdMagic), "zstd", "zstd -dc"}, // twice
}

// longestMagic is the length of the longest beginning of compressions.
const longestMagic = 6

// compressedError is the error of a bundle that another tool has compressed.
type compressedError struct{ name, command string }

func (e *compressedError) Error() string {
	return fmt.Sprintf("the bundle was compressed with %s after it was written", e.name)
}

// hint returns what to do about it.
func (e *compressedError) hint() string {
	return fmt.Sprintf("Decompress it: %s FILE > BUNDLE", e.command)
}

// otherCompression returns a *[compressedError] if head is the beginning of a compressed file, and otherwise nil.
func otherCompression(head []byte) error {
	for _, c := range compressions {
		if bytes.HasPrefix(head, []byte(c.magic)) {
			return &compressedError{c.name, c.command}
		}
	}
	return nil
}
