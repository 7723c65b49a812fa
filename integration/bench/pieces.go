package main

import (
	"archive/tar"
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"math/rand/v2"

	"github.com/imagepin/imagepin/integration/images"
)

// piecedLayer returns the only layer of a tree of a few large files, as the libraries and models in images for AI. Its
// files repeat one piece, which is compressed once and is in memory once. The piece is much larger than the 32 KiB in
// which gzip finds repetitions, so that unpacking it is as much work as with other content of that compressibility.
func piecedLayer(t tree, program []byte) (layerData, error) {
	rnd := rand.New(rand.NewPCG(t.seed, 0))
	var piece []byte
	if t.content == textFiles {
		piece = images.Text(rnd, int(t.piece))
	} else {
		piece = images.Mixed(rnd, int(t.piece), 2)
	}
	a := newArchive()
	if program != nil {
		if err := a.file(programPath, program, 1); err != nil {
			return layerData{}, err
		}
	}
	for i := range t.files {
		if err := a.file(fmt.Sprintf("lib%d.so", i), piece, int(t.size/int64(t.files)/t.piece)); err != nil {
			return layerData{}, err
		}
	}
	return a.layer()
}

// archive is a compressed tar archive without its end: one member of gzip (RFC 1952), whose pieces are compressed
// separately.
type archive struct {
	packed [][]byte
	plain  hash.Hash // SHA-256
	check  uint32    // CRC-32 of what plain has seen
	size   uint32    // of what plain has seen, modulo 2³²
}

func newArchive() *archive {
	const deflated, unknownSystem = 8, 255
	return &archive{packed: [][]byte{{0x1f, 0x8b, deflated, 0, 0, 0, 0, 0, 0, unknownSystem}}, plain: sha256.New()}
}

// file adds a file that repeats a piece.
func (a *archive) file(name string, piece []byte, times int) error {
	var header bytes.Buffer
	size := len(piece) * times
	if err := tar.NewWriter(&header).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(size)}); err != nil {
		return err
	}
	const block = 512
	padding := make([]byte, (block-size%block)%block)
	return errors.Join(a.add(header.Bytes(), 1), a.add(piece, times), a.add(padding, 1))
}

func (a *archive) add(piece []byte, times int) error {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.DefaultCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(piece); err != nil {
		return err
	}
	if err := w.Flush(); err != nil { // not closed: the next piece continues
		return err
	}
	for range times {
		a.packed = append(a.packed, packed.Bytes())
		a.plain.Write(piece)
		a.check = crc32.Update(a.check, crc32.IEEETable, piece)
		a.size += uint32(len(piece))
	}
	return nil
}

// layer ends the compressed form.
func (a *archive) layer() (layerData, error) {
	var end bytes.Buffer
	w, err := flate.NewWriter(&end, flate.DefaultCompression)
	if err != nil {
		return layerData{}, err
	}
	if err := w.Close(); err != nil {
		return layerData{}, err
	}
	trailer := binary.LittleEndian.AppendUint32(end.Bytes(), a.check)
	a.packed = append(a.packed, binary.LittleEndian.AppendUint32(trailer, a.size))
	return layerData{packed: a.packed, plainSum: a.plain.(hash.Cloner), packedSum: sumOf(a.packed...)}, nil
}
