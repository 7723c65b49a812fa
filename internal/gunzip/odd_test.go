package gunzip

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
)

// stream is a gzip stream that no usual compressor writes.
type stream struct {
	name     string
	data     []byte
	reserved bool // it has reserved flags
}

// oddStreams returns streams of one member and more: with padding and junk after it, with headers that are long, cut off or
// not valid, with damage in each part of a member, and with several of these.
func oddStreams() []stream {
	rnd := rand.New(rand.NewPCG(1, 1))
	all := oddHeaders()
	add := func(name string, parts ...[]byte) {
		all = append(all, stream{name: name, data: bytes.Join(parts, nil)})
	}
	one := odd{data: []byte("one")}.bytes()
	member := odd{data: mixed(rnd, 3000), name: "name", comment: "comment", extra: []byte("extra"), crc: true}
	whole, header := member.bytes(), len(member.header())

	junk := junk(rnd)
	for _, name := range slices.Sorted(maps.Keys(junk)) {
		add("then "+name, one, junk[name])
		add("two members, then "+name, one, whole, junk[name])
		add("between two members, "+name, one, junk[name], one)
	}
	for n := range header + 4 {
		add(fmt.Sprintf("a member that is cut off at %d", n), whole[:n])
		add(fmt.Sprintf("a second member that is cut off at %d", n), one, whole[:n])
	}
	for n := 1; n <= 9; n++ {
		add(fmt.Sprintf("a member without its last %d bytes", n), whole[:len(whole)-n])
		add(fmt.Sprintf("a second member without its last %d bytes", n), one, whole[:len(whole)-n])
	}
	for _, at := range []int{1, 4, 5, 8, len(whole) / 3, len(whole) / 2} {
		add(fmt.Sprintf("damage %d bytes before the end", at), damaged(whole, len(whole)-at))
		add(fmt.Sprintf("a second member with damage %d bytes before the end", at), one, damaged(whole, len(whole)-at))
		add(fmt.Sprintf("damage %d bytes before the end, then zeros", at), damaged(whole, len(whole)-at), make([]byte, 512))
	}
	for range 60 {
		several := stream{}
		for range 1 + rnd.IntN(4) {
			part := stream{name: "a member", data: whole}
			if rnd.IntN(2) == 0 {
				part = all[rnd.IntN(len(all))]
			}
			several.name += ", then " + part.name
			several.data = append(several.data, part.data...)
			several.reserved = several.reserved || part.reserved
		}
		all = append(all, several)
	}
	return all
}

// oddHeaders returns streams with unusual headers.
func oddHeaders() []stream {
	var all []stream
	add := func(name string, o odd) {
		o.data = []byte("data")
		b, reserved := o.bytes(), o.flags&0xe0 != 0
		all = append(all, stream{name, b, reserved}, stream{"a second member with " + name, append(odd{data: []byte("one")}.bytes(), b...), reserved})
	}
	for _, n := range []int{0, 1, 510, 511, 512, 513, 4096, inputSize + 10, 3 * inputSize} {
		text := strings.Repeat("n", n)
		add(fmt.Sprintf("a name of %d bytes", n), odd{name: text, named: true})
		add(fmt.Sprintf("a comment of %d bytes", n), odd{comment: text, commented: true})
		add(fmt.Sprintf("a name and a comment of %d bytes", n), odd{name: text, comment: text, named: true, commented: true, crc: true})
		add(fmt.Sprintf("a name of %d bytes and a wrong checksum", n), odd{name: text, named: true, crc: true, wrongCRC: true})
		add(fmt.Sprintf("an extra field of %d bytes", min(n, 0xffff)), odd{extra: []byte(text)[:min(n, 0xffff)]})
	}
	add("a name that is not ASCII", odd{name: "\xff\xe4"})
	for _, flags := range []byte{1, 0x20, 0x40, 0x80, 0xe0} {
		add(fmt.Sprintf("flags %#x", flags), odd{flags: flags})
	}
	return all
}

// junk returns what is not a member.
func junk(rnd *rand.Rand) map[string][]byte {
	all := map[string][]byte{
		"nothing": nil, "text": []byte("something else that is long enough for a header"), "1f": {0x1f}, "1f 8b": {0x1f, 0x8b}, "1f 8b 08": {0x1f, 0x8b, 8},
		"1f and text": append([]byte{0x1f}, "something else"...), "another method": append([]byte{0x1f, 0x8b, 7}, make([]byte, 20)...),
		"1f 8b and zeros": append([]byte{0x1f, 0x8b}, make([]byte, 100)...), "zstd": append([]byte{0x28, 0xb5, 0x2f, 0xfd}, make([]byte, 100)...),
		"the magic number of compress": append([]byte{0x1f, 0x9d}, make([]byte, 100)...), "that of pack": append([]byte{0x1f, 0x1e}, make([]byte, 100)...),
		"that of zip": append([]byte("PK\x03\x04"), make([]byte, 100)...), "much text": bytes.Repeat([]byte("junk"), inputSize),
	}
	for _, n := range []int{1, 2, 3, 7, 8, 9, 10, 11, 17, 18, 20, 511, 512, 1024, 5 * inputSize} {
		all[fmt.Sprintf("%d zeros", n)] = make([]byte, n)
	}
	for range 10 {
		random := make([]byte, 1+rnd.IntN(64))
		for i := range random {
			random[i] = byte(rnd.Uint32())
		}
		all[fmt.Sprintf("%x", random)] = random
	}
	return all
}

func damaged(data []byte, at int) []byte {
	d := bytes.Clone(data)
	d[at] ^= 0x10
	return d
}

// odd is a member with a header of its own.
type odd struct {
	data             []byte
	extra            []byte
	name, comment    string
	named, commented bool // also if it is empty
	flags            byte
	crc, wrongCRC    bool
}

func (o odd) header() []byte {
	h := []byte{0x1f, 0x8b, 8, o.flags, 1, 2, 3, 4, 0, 3}
	if o.extra != nil {
		h[3] |= flagExtra
		h = append(append(h, byte(len(o.extra)), byte(len(o.extra)>>8)), o.extra...)
	}
	if o.named || o.name != "" {
		h[3] |= flagName
		h = append(append(h, o.name...), 0)
	}
	if o.commented || o.comment != "" {
		h[3] |= flagComment
		h = append(append(h, o.comment...), 0)
	}
	if o.crc {
		h[3] |= flagHeaderCRC
		crc := crc32.ChecksumIEEE(h)
		if o.wrongCRC {
			crc++
		}
		h = append(h, byte(crc), byte(crc>>8))
	}
	return h
}

func (o odd) bytes() []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(o.data)
	_ = w.Close()
	const plainHeader = 10
	return append(o.header(), b.Bytes()[plainHeader:]...)
}
