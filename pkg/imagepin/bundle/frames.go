package bundle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
)

// A compressed bundle is a sequence of zstd frames (RFC 8878), each with the size of its content in its header: FrameSize, or
// less in the last one. After them comes a skippable frame with the CRC-32C of all bytes before it. zstd ignores it. Without
// it, a changed bit could be undetected, because several compressed forms can have the same content.

// The frame with the checksum: magic, size of the rest, checksum.
const (
	checksumMagic     = 0x184d2a5b
	checksumFrameSize = 12
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksumFrame returns the last frame of a file with this checksum.
func checksumFrame(sum uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, checksumMagic)
	b = binary.LittleEndian.AppendUint32(b, 4)
	return binary.LittleEndian.AppendUint32(b, sum)
}

// errFrameTruncated is not io.ErrUnexpectedEOF, which the zstd decoder takes for the end at some places.
var errFrameTruncated = errors.New("the file is truncated in a zstd frame")

// errNoChecksum is the error of a file without the frame with the checksum.
var errNoChecksum = errors.New("the file is truncated after a zstd frame, or another tool has compressed it: then decompress it with zstd -d")

// frames passes zstd frames through to a decoder, and fails at what it would ignore: other frames, dictionaries, reserved bits,
// an incomplete frame, and data after the frame with the checksum.
type frames struct {
	r        io.Reader
	sum      hash.Hash32
	buffer   [maxFrameHeader]byte
	out      []byte // of buffer, to be returned
	body     int64  // bytes of the block, to be returned
	in       bool   // in a frame
	last     bool   // the block is the last one of the frame
	checksum bool
	short    bool    // a frame had less than FrameSize bytes
	at       int64   // in the file
	starts   []int64 // of the frames in the file
	err      error
}

func newFrames(r io.Reader) *frames { return &frames{r: r, sum: crc32.New(castagnoli)} }

const (
	frameMagicSize   = 4
	blockHeaderSize  = 3
	frameChecksum    = 4
	maxFrameHeader   = 18
	maxCompressBlock = 128 << 10
)

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(f.out) == 0 && f.body == 0 && f.err == nil {
		f.err = f.next()
	}
	if f.err != nil {
		return 0, f.err
	}
	if len(f.out) > 0 {
		n := copy(p, f.out)
		f.out = f.out[n:]
		return n, nil
	}
	n, err := f.r.Read(p[:min(int64(len(p)), f.body)])
	_, _ = f.sum.Write(p[:n]) // a hash accepts all writes
	f.body, f.at = f.body-int64(n), f.at+int64(n)
	if err != nil && f.body > 0 {
		f.err = truncatedFrame(err)
	}
	return n, f.err
}

func truncatedFrame(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errFrameTruncated
	}
	return err
}

// next reads the next header of a frame or a block.
func (f *frames) next() error {
	if !f.in {
		return f.header()
	}
	if f.last {
		f.in = false
		if !f.checksum {
			return nil
		}
		return f.fill(0, frameChecksum)
	}
	if err := f.fill(0, blockHeaderSize); err != nil {
		return err
	}
	size, last, err := blockHeader(f.buffer[:])
	f.body, f.last = size, last
	return err
}

// fill reads n bytes that are to be returned too.
func (f *frames) fill(at, n int) error {
	if _, err := io.ReadFull(f.r, f.buffer[at:at+n]); err != nil {
		return truncatedFrame(err)
	}
	_, _ = f.sum.Write(f.buffer[at : at+n])
	f.out, f.at = f.buffer[:at+n], f.at+int64(n)
	return nil
}

func (f *frames) header() error {
	sum := f.sum.Sum32()
	if err := f.fill(0, frameMagicSize+1); errors.Is(err, errFrameTruncated) {
		return errNoChecksum
	} else if err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(f.buffer[:]) == checksumMagic {
		return f.end(sum)
	}
	size, err := frameHeaderSize(f.buffer[:])
	if err != nil {
		return err
	}
	if err := f.fill(frameMagicSize+1, size-frameMagicSize-1); err != nil {
		return err
	}
	content := frameContentSize(f.buffer[:])
	if f.short || content < 1 || content > FrameSize {
		return fmt.Errorf("a zstd frame is not as imagepin writes it: its content has %d bytes, or it follows a short one: decompress the file with zstd -d", content)
	}
	f.short = content < FrameSize
	f.in, f.last, f.checksum = true, false, f.buffer[frameMagicSize]&4 != 0
	f.starts = append(f.starts, f.at-int64(size))
	return nil
}

// end reads the rest of the frame with the checksum. It returns io.EOF at a valid end.
func (f *frames) end(sum uint32) error {
	f.out = nil
	rest := f.buffer[frameMagicSize+1 : checksumFrameSize]
	if _, err := io.ReadFull(f.r, rest); err != nil {
		return truncatedFrame(err)
	}
	if [checksumFrameSize]byte(f.buffer[:]) != [checksumFrameSize]byte(checksumFrame(sum)) {
		return errors.New("the compressed data does not match its checksum")
	}
	switch n, err := io.ReadFull(f.r, f.buffer[:1]); {
	case n > 0:
		return errors.New("there is data after the last zstd frame")
	default:
		return err
	}
}

// frameHeaderSize returns the size of the header of a frame from its first five bytes.
func frameHeaderSize(b []byte) (int, error) {
	if [4]byte(b) != [4]byte(zstdMagic) {
		return 0, errors.New("there is data after a zstd frame that is not a zstd frame")
	}
	descriptor := b[frameMagicSize]
	if descriptor&0b11011 != 0 || descriptor&0b100000 == 0 { // unused, reserved, dictionary; no content size
		return 0, fmt.Errorf("a zstd frame is not as imagepin writes it, its descriptor is %#02x: decompress the file with zstd -d", descriptor)
	}
	return frameMagicSize + 1 + contentSizeBytes(descriptor), nil
}

// contentSizeBytes returns the size of the field with the size of the content.
func contentSizeBytes(descriptor byte) int { return 1 << (descriptor >> 6) }

// frameContentSize returns the size of the content of a frame.
func frameContentSize(b []byte) int64 {
	field := b[frameMagicSize+1:]
	switch contentSizeBytes(b[frameMagicSize]) {
	case 2:
		return int64(binary.LittleEndian.Uint16(field)) + 256
	case 4:
		return int64(binary.LittleEndian.Uint32(field))
	case 8:
		return int64(min(binary.LittleEndian.Uint64(field), maxSize))
	}
	return int64(field[0])
}

// blockHeader returns the number of bytes that follow the header of a block, and whether it is the last one of its frame.
func blockHeader(b []byte) (size int64, last bool, err error) {
	h := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
	size = int64(h >> 3)
	switch h >> 1 & 3 {
	case 1:
		size = 1
	case 3:
		return 0, false, errors.New("a zstd block has the reserved type")
	}
	if size > maxCompressBlock {
		return 0, false, fmt.Errorf("a zstd block has %d bytes", size)
	}
	return size, h&1 != 0, nil
}
