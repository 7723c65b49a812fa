package gunzip

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	kgzip "github.com/klauspost/compress/gzip"
)

// decompressorsEnv is the directory with pigz and igzip, see hack/decompressors.sh. If it is not set, those in PATH are used.
const decompressorsEnv = "IMAGEPIN_DECOMPRESSORS"

// peer is another decompressor. It fails for a stream that it does not accept.
type peer func(stream []byte) ([]byte, error)

// peers returns the decompressors that containerd has used for layers.
func peers(t *testing.T) map[string]peer {
	all := map[string]peer{
		"compress/gzip": reference,
		"klauspost": func(stream []byte) ([]byte, error) {
			r, err := kgzip.NewReader(bytes.NewReader(stream))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(r)
		},
	}
	for _, name := range []string{"pigz", "igzip"} {
		path, err := exec.LookPath(name)
		if dir := os.Getenv(decompressorsEnv); dir != "" {
			if path, err = exec.LookPath(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err == nil {
			all[name] = command(path)
		}
	}
	return all
}

// command returns a program as containerd calls it (cmdStream in pkg/archive/compression).
func command(path string) peer {
	return func(stream []byte) ([]byte, error) {
		c := exec.Command(path, "-d", "-c")
		c.Stdin = bytes.NewReader(stream)
		return c.Output()
	}
}

// TestPeers checks with odd streams that a Reader accepts what any other decompressor accepts, with the same data, and
// nothing that all of them reject. Only of a later member with reserved flags they have different data.
func TestPeers(t *testing.T) {
	peers := peers(t)
	accepted, rejected := 0, 0
	for _, s := range oddStreams() {
		got, err := gunzip(bytes.NewReader(s.data))
		accepts, same := 0, 0
		for _, decompress := range peers {
			if want, err := decompress(s.data); err == nil {
				accepts++
				if bytes.Equal(got, want) {
					same++
				}
			}
		}
		switch {
		case accepts == 0 && err == nil:
			if peers["pigz"] != nil { // it accepts the most
				t.Errorf("%s: accepted, all others reject it", s.name)
			}
		case accepts == 0:
			rejected++
		case err != nil:
			t.Errorf("%s: %v, %d others accept it", s.name, err, accepts)
		case same < accepts && !s.reserved || same == 0:
			t.Errorf("%s: %d bytes, %d of %d others have the same", s.name, len(got), same, accepts)
		default:
			accepted++
		}
	}
	if accepted < 80 || rejected < 50 {
		t.Errorf("%d streams are accepted and %d rejected", accepted, rejected)
	}
	t.Logf("%d peers, %d streams accepted, %d rejected", len(peers), accepted, rejected)
}

// TestLongText checks that a long name has no part in the memory of a Reader.
func TestLongText(t *testing.T) {
	const size = 64 << 20
	header := odd{named: true}.header()
	name := io.LimitReader(readerFunc(func(p []byte) (int, error) {
		for i := range p {
			p[i] = 'n'
		}
		return len(p), nil
	}), size)
	rest := odd{data: []byte("data"), named: true}.bytes()[len(header)-1:]
	stream := io.MultiReader(bytes.NewReader(header[:len(header)-1]), name, bytes.NewReader(rest))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := gunzip(stream)
	runtime.ReadMemStats(&after)
	if err != nil || string(got) != "data" {
		t.Errorf("%q, %v", got, err)
	}
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/16 {
		t.Errorf("%d bytes are allocated", allocated)
	}
}

// TestRestIsRead checks that the source is read to its end, and that its error is not lost, whatever follows the members.
func TestRestIsRead(t *testing.T) {
	failure := errors.New("failure")
	one := odd{data: []byte("one")}.bytes()
	for name, junk := range map[string][]byte{
		"nothing": nil, "zeros": make([]byte, 3*inputSize), "a header that is cut off": one[:5], "another method": {0x1f, 0x8b, 7, 0, 0, 0, 0, 0, 0, 0, 0},
	} {
		source := bytes.NewReader(append(bytes.Clone(one), junk...))
		if got, err := gunzip(source); err != nil || string(got) != "one" || source.Len() > 0 {
			t.Errorf("then %s: %q, %v, %d bytes are not read", name, got, err, source.Len())
		}
		for _, reason := range []error{failure, io.ErrUnexpectedEOF, gzip.ErrHeader} {
			source.Reset(append(bytes.Clone(one), junk...))
			if _, err := gunzip(io.MultiReader(source, failing{reason})); !errors.Is(err, reason) {
				t.Errorf("then %s, and the source fails with %v: %v", name, reason, err)
			}
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }
