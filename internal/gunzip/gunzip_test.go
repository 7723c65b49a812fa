package gunzip

import (
	"bytes"
	"compress/flate"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"

	kgzip "github.com/klauspost/compress/gzip"
)

// levels are the levels of compression with other kinds of blocks.
var levels = []int{gzip.HuffmanOnly, gzip.NoCompression, gzip.BestSpeed, gzip.BestCompression}

// contents are data of different kinds.
func contents() map[string][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	random := make([]byte, 300<<10)
	for i := range random {
		random[i] = byte(rnd.Uint32())
	}
	all := map[string][]byte{
		"empty":   nil,
		"byte":    {7},
		"zeros":   make([]byte, 400<<10),
		"random":  random,
		"mixed":   mixed(rnd, 400<<10),
		"skewed":  skewed(rnd, 400<<10),
		"far":     append(append(random[:historySize:historySize], random[:historySize]...), random[1:historySize]...),
		"lengths": lengths(rnd),
	}
	for d := 1; d <= 20; d++ {
		all[fmt.Sprintf("distance %d", d)] = bytes.Repeat(random[:d], 5000/d+1)
	}
	return all
}

// mixed returns words and bytes that do not compress.
func mixed(rnd *rand.Rand, size int) []byte {
	words := strings.Fields("function return library the of const char static inline version license error package symbol")
	b := make([]byte, 0, size+64)
	for len(b) < size {
		if rnd.IntN(3) == 0 {
			for range 16 {
				b = append(b, byte(rnd.Uint32()))
			}
			continue
		}
		b = append(append(b, words[rnd.IntN(len(words))]...), ' ')
	}
	return b[:size]
}

// skewed returns bytes of which some are so rare that their codes are as long as codes get.
func skewed(rnd *rand.Rand, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		for b[i] < 250 && rnd.IntN(3) > 0 {
			b[i]++
		}
	}
	return b
}

// lengths returns repetitions of each length at many distances.
func lengths(rnd *rand.Rand) []byte {
	var b []byte
	for n := 3; n <= longestMatch; n++ {
		for range 16 {
			b = append(b, byte(rnd.Uint32()))
		}
		if len(b) > n {
			from := rnd.IntN(min(len(b)-n, historySize-n) + 1)
			from = len(b) - n - from
			b = append(b, b[from:from+n]...)
		}
	}
	return b
}

func compress(t testing.TB, level int, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gunzip(r io.Reader) ([]byte, error) {
	z, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func TestContents(t *testing.T) {
	for name, data := range contents() {
		for _, level := range levels {
			packed := compress(t, level, data)
			sources := map[string]io.Reader{
				"at once": bytes.NewReader(packed), "in halves": iotest.HalfReader(bytes.NewReader(packed)),
				"with its end": iotest.DataErrReader(bytes.NewReader(packed)),
			}
			if len(packed) < 2*inputSize {
				sources["in bytes"] = iotest.OneByteReader(bytes.NewReader(packed))
			}
			for source, r := range sources {
				got, err := gunzip(r)
				if err != nil || !bytes.Equal(got, data) {
					t.Fatalf("%s, level %d, read %s: %d bytes of %d, %v", name, level, source, len(got), len(data), err)
				}
			}
		}
	}
}

func TestMembers(t *testing.T) {
	one, two := []byte("one"), bytes.Repeat([]byte("two"), 100_000)
	var header bytes.Buffer
	w := gzip.NewWriter(&header)
	w.Header = gzip.Header{Name: "name", Comment: "comment", Extra: bytes.Repeat([]byte{1}, 60_000)}
	if _, err := w.Write(one); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	stream := bytes.Join([][]byte{compress(t, 0, one), compress(t, 6, nil), compress(t, 9, two), header.Bytes()}, nil)
	want := bytes.Join([][]byte{one, two, one}, nil)
	got, err := gunzip(iotest.HalfReader(bytes.NewReader(stream)))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes of %d, %v", len(got), len(want), err)
	}
	same(t, append(stream, "something else"...))
	same(t, append(stream, 0))
}

// same checks that a Reader accepts and rejects what compress/gzip does, for the same reason, if compress/gzip ignores what
// follows the members.
func same(t *testing.T, stream []byte) {
	t.Helper()
	if hasLongText(stream) { // see TestPeers
		return
	}
	want, wantErr := members(stream)
	got, err := gunzip(bytes.NewReader(stream))
	if kind(err) != kind(wantErr) {
		t.Fatalf("got %v, compress/gzip has %v, for %d bytes", err, wantErr, len(stream))
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes, compress/gzip has %d others, for %d bytes", len(got), len(want), len(stream))
	}
	if err != nil && !bytes.HasPrefix(want, got) && !bytes.HasPrefix(got, want) {
		t.Fatalf("got other data before %v", err)
	}
}

// hasLongText reports whether a stream may have a name or a comment that is too long for compress/gzip.
func hasLongText(stream []byte) bool {
	for len(stream) > 512 {
		i := bytes.Index(stream, []byte{0x1f, 0x8b, 8})
		if i < 0 || i+3 >= len(stream) {
			return false
		}
		if stream[i+3]&(flagName|flagComment) != 0 {
			return true
		}
		stream = stream[i+3:]
	}
	return false
}

// members reads the members of a stream with compress/gzip, up to one whose header is not valid.
func members(stream []byte) ([]byte, error) {
	source := bytes.NewReader(stream)
	r, err := gzip.NewReader(source)
	if err != nil {
		return nil, err
	}
	var all []byte
	for {
		r.Multistream(false)
		data, err := io.ReadAll(r)
		if all = append(all, data...); err != nil {
			return all, err
		}
		if r.Reset(source) != nil {
			return all, nil
		}
	}
}

func reference(stream []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(stream))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// kind returns what an error reports. Near its end, a damaged stream can be cut off or corrupt, depending on how many bits
// a decompressor looks at.
func kind(err error) string {
	var corrupt flate.CorruptInputError
	if errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "damaged"
	}
	return fmt.Sprint(err)
}

func TestCutOff(t *testing.T) {
	for name, data := range map[string][]byte{"mixed": mixed(rand.New(rand.NewPCG(1, 1)), 600), "zeros": make([]byte, 600)} {
		for _, level := range levels {
			packed := compress(t, level, data)
			for n := range len(packed) {
				got, err := gunzip(bytes.NewReader(packed[:n]))
				want := io.ErrUnexpectedEOF
				if n == 0 {
					want = io.EOF
				}
				if !errors.Is(err, want) || !bytes.HasPrefix(data, got) {
					t.Fatalf("%s, level %d, %d bytes of %d: %d bytes, %v", name, level, n, len(packed), len(got), err)
				}
			}
		}
	}
}

func TestDamaged(t *testing.T) {
	for _, level := range levels {
		packed := compress(t, level, mixed(rand.New(rand.NewPCG(1, 1)), 200))
		for bit := range 8 * len(packed) {
			damaged := bytes.Clone(packed)
			damaged[bit/8] ^= 1 << (bit % 8)
			same(t, damaged)
		}
	}
}

func TestSourceFails(t *testing.T) {
	packed := compress(t, 6, mixed(rand.New(rand.NewPCG(1, 1)), 100_000))
	failure := errors.New("failure")
	for _, n := range []int{0, 5, 10, 1000, len(packed) - 1} {
		_, err := gunzip(io.MultiReader(bytes.NewReader(packed[:n]), iotest.ErrReader(failure)))
		if !errors.Is(err, failure) {
			t.Errorf("after %d bytes: %v", n, err)
		}
	}
}

// TestNoProgress checks that a source that returns nothing again and again ends the stream.
func TestNoProgress(t *testing.T) {
	packed := compress(t, 6, mixed(rand.New(rand.NewPCG(1, 1)), 10_000))
	_, err := gunzip(io.MultiReader(bytes.NewReader(packed[:1000]), readerFunc(func([]byte) (int, error) { return 0, nil })))
	if !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v", err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestDataBeforeItWaits checks that data is returned before the source is asked for more, even if the next block may have
// a large header.
func TestDataBeforeItWaits(t *testing.T) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	data := mixed(rand.New(rand.NewPCG(1, 1)), 10_000)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(contents()["random"][:200]); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	z, err := NewReader(io.MultiReader(bytes.NewReader(b.Bytes()), iotest.ErrReader(errors.New("asked for more"))))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.ReadFull(z, make([]byte, len(data))); err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
}

func FuzzReader(f *testing.F) {
	for _, data := range contents() {
		if len(data) < 10_000 {
			f.Add(compress(f, 1, data))
			f.Add(compress(f, 9, data))
			f.Add(compress(f, gzip.HuffmanOnly, data))
		}
	}
	f.Fuzz(func(t *testing.T, stream []byte) {
		// The checksums would hide all that follows a change.
		same(t, stream)
		deflated(t, stream)
	})
}

// deflated checks deflated data without checksums.
func deflated(t *testing.T, data []byte) {
	want, wantErr := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(data)), 1<<20))
	got, err := inflateAll(data, 1<<20)
	if kind(err) != kind(wantErr) {
		t.Fatalf("got %v, compress/flate has %v", err, wantErr)
	}
	if err == nil && !bytes.Equal(got, want) {
		t.Fatalf("got %d bytes, compress/flate has %d others", len(got), len(want))
	}
}

func inflateAll(data []byte, limit int) (all []byte, err error) {
	z := &Reader{}
	z.in.source = bytes.NewReader(data)
	for err == nil && len(all) < limit {
		z.next = z.makeRoom()
		err = z.inflate()
		all = append(all, z.out[z.next:z.outEnd]...)
	}
	if errors.Is(err, io.EOF) || len(all) >= limit {
		err = nil
	}
	return all[:min(len(all), limit)], err
}

func BenchmarkReader(b *testing.B) {
	data := mixed(rand.New(rand.NewPCG(1, 1)), 16<<20)
	for _, level := range []int{1, 6} {
		packed := compress(b, level, data)
		for name, open := range map[string]func(io.Reader) (io.Reader, error){
			"gunzip":    func(r io.Reader) (io.Reader, error) { return NewReader(r) },
			"klauspost": func(r io.Reader) (io.Reader, error) { return kgzip.NewReader(r) },
			"standard":  func(r io.Reader) (io.Reader, error) { return gzip.NewReader(r) },
		} {
			b.Run(fmt.Sprintf("%s level %d", name, level), func(b *testing.B) {
				b.SetBytes(int64(len(data)))
				b.ReportAllocs()
				buf := make([]byte, 64<<10)
				for b.Loop() {
					r, err := open(bytes.NewReader(packed))
					if err != nil {
						b.Fatal(err)
					}
					if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{r}, buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
