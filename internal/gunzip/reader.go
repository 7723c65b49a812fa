package gunzip

import (
	"compress/gzip"
	"encoding/binary"
	"hash/crc32"
	"io"
)

// Flags of the header of a member (RFC 1952, section 2.3.1).
const (
	flagHeaderCRC = 1 << 1
	flagExtra     = 1 << 2
	flagName      = 1 << 3
	flagComment   = 1 << 4
)

// Reader is an io.Reader of the decompressed data of a gzip stream. A stream has one or more members. What follows them and
// is not another member, such as padding or a header that is cut off, is read and ignored.
//
// It returns gzip.ErrHeader, gzip.ErrChecksum and flate.CorruptInputError for data that is not valid,
// io.ErrUnexpectedEOF for a stream that is cut off, and the errors of its source.
type Reader struct {
	inflater
	next int // the data before this offset in the inflater's output has been read
	crc  uint32
	size uint32 // of the member, modulo 2³²
	err  error  // after the data
}

// NewReader returns a Reader of a gzip stream, after the header of the first member. It fails with io.EOF if r has no data,
// and as [Reader] for another header. A Reader has 224 KiB of memory. It reads ahead: the last data of a source that has not
// ended comes with the end or with more.
func NewReader(r io.Reader) (*Reader, error) {
	z := &Reader{}
	z.in.source = r
	if err := z.header(); err != nil {
		return nil, err
	}
	return z, nil
}

// Read implements io.Reader.
func (z *Reader) Read(p []byte) (int, error) {
	for z.next == z.outEnd {
		if z.err != nil {
			return 0, z.err
		}
		z.err = z.decode()
	}
	n := copy(p, z.out[z.next:z.outEnd])
	z.next += n
	return n, nil
}

// decode decodes more data, all of which has been read before.
func (z *Reader) decode() error {
	z.next = z.makeRoom()
	err := z.inflate()
	decoded := z.out[z.next:z.outEnd]
	z.crc = crc32.Update(z.crc, crc32.IEEETable, decoded)
	z.size += uint32(len(decoded))
	if err != io.EOF {
		return err
	}
	if err := z.trailer(); err != nil {
		return err
	}
	if z.header() == nil {
		return nil
	}
	return z.in.drain()
}

// trailer reads the end of a member, and compares it with the data.
func (z *Reader) trailer() error {
	b, err := z.in.next(8)
	if err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(b) != z.crc || binary.LittleEndian.Uint32(b[4:]) != z.size {
		return gzip.ErrChecksum
	}
	return nil
}

// header reads the header of a member. It returns io.EOF if there is none.
//
// It ignores reserved flags, as igzip and compress/gzip do: nothing follows from them, and a stream that is read in another
// way than it was written has another digest.
func (z *Reader) header() error {
	if ended, err := z.in.ended(); err != nil {
		return err
	} else if ended {
		return io.EOF
	}
	const size = 10
	h, err := z.in.next(size)
	if err != nil {
		return err
	}
	const deflated = 8
	if h[0] != 0x1f || h[1] != 0x8b || h[2] != deflated {
		return gzip.ErrHeader
	}
	flags := h[3]
	crc := crc32.ChecksumIEEE(h)
	if flags&flagExtra != 0 {
		b, err := z.in.next(2)
		if err != nil {
			return err
		}
		crc = crc32.Update(crc, crc32.IEEETable, b)
		if b, err = z.in.next(int(binary.LittleEndian.Uint16(b))); err != nil {
			return err
		}
		crc = crc32.Update(crc, crc32.IEEETable, b)
	}
	for _, text := range []byte{flagName, flagComment} {
		if flags&text == 0 {
			continue
		}
		if err := z.headerText(&crc); err != nil {
			return err
		}
	}
	if flags&flagHeaderCRC != 0 {
		b, err := z.in.next(2)
		if err != nil {
			return err
		}
		if binary.LittleEndian.Uint16(b) != uint16(crc) {
			return gzip.ErrHeader
		}
	}
	z.crc, z.size = 0, 0
	z.inflater.restart()
	return nil
}

// headerText skips a text that ends with a zero byte. It can have any length, and is not kept.
func (z *Reader) headerText(crc *uint32) error {
	for {
		b, err := z.in.until(0)
		if err != nil {
			return err
		}
		*crc = crc32.Update(*crc, crc32.IEEETable, b)
		if b[len(b)-1] == 0 {
			return nil
		}
	}
}
