package bundle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// frames passes zstd frames through (RFC 8878), and fails at what the zstd decoder would ignore: skippable frames, dictionaries
// and reserved bits. It fails if the last frame is incomplete, or something else follows it.
type frames struct {
	r        io.Reader
	buffer   [18]byte
	out      []byte // of buffer, to be returned
	body     int64  // bytes of the block, to be returned
	in       bool   // in a frame
	last     bool   // the block is the last one of the frame
	checksum bool
}

func newFrames(r io.Reader) *frames { return &frames{r: r} }

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
	for len(f.out) == 0 && f.body == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(f.out) > 0 {
		n := copy(p, f.out)
		f.out = f.out[n:]
		return n, nil
	}
	n, err := f.r.Read(p[:min(int64(len(p)), f.body)])
	f.body -= int64(n)
	if errors.Is(err, io.EOF) && f.body > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
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
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	f.out = f.buffer[:at+n]
	return nil
}

func (f *frames) header() error {
	if _, err := io.ReadFull(f.r, f.buffer[:1]); err != nil {
		return err // io.EOF at the end of a frame is the end
	}
	if err := f.fill(1, frameMagicSize); err != nil {
		return err
	}
	size, err := frameHeaderSize(f.buffer[:])
	if err != nil {
		return err
	}
	if err := f.fill(frameMagicSize+1, size-frameMagicSize-1); err != nil {
		return err
	}
	f.in, f.last, f.checksum = true, false, f.buffer[frameMagicSize]&4 != 0
	return nil
}

// frameHeaderSize returns the size of the header of a frame from its first five bytes.
func frameHeaderSize(b []byte) (int, error) {
	if [4]byte(b) != [4]byte(zstdMagic) {
		return 0, errors.New("there is data after a zstd frame that is not a zstd frame")
	}
	descriptor := b[frameMagicSize]
	if descriptor&0b11011 != 0 { // unused, reserved, dictionary
		return 0, fmt.Errorf("a zstd frame has the descriptor %#02x, which a bundle does not have", descriptor)
	}
	size := frameMagicSize + 1
	single := descriptor&0x20 != 0
	if !single {
		size++ // window
	}
	switch descriptor >> 6 {
	case 0:
		if single {
			size++
		}
	case 1:
		size += 2
	case 2:
		size += 4
	case 3:
		size += 8
	}
	return size, nil
}

// frameContentSize returns the size of the content of a frame, or -1 if its header does not have it.
func frameContentSize(b []byte) int64 {
	single := b[frameMagicSize]&0x20 != 0
	at := frameMagicSize + 1
	if !single {
		at++
	}
	switch b[frameMagicSize] >> 6 {
	case 1:
		return int64(binary.LittleEndian.Uint16(b[at:])) + 256
	case 2:
		return int64(binary.LittleEndian.Uint32(b[at:]))
	case 3:
		return int64(min(binary.LittleEndian.Uint64(b[at:]), maxSize))
	}
	if single {
		return int64(b[at])
	}
	return -1
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
