package bundle_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

var errBroken = errors.New("connection reset")

// brokenReader fails after n bytes.
type brokenReader struct {
	r io.Reader
	n int64
}

func (b *brokenReader) Read(p []byte) (int, error) {
	if b.n <= 0 {
		return 0, errBroken
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.n)])
	b.n -= int64(n)
	return n, err
}

func TestInterruptedWriteContinuesInALayer(t *testing.T) {
	f := newFleet(t, 30<<20)
	large := digest.FromBytes(f.large)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			whole, path := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), name)
			write(t, whole, bundle.Options{Lock: f.lock}, f)
			f.breaks = func(d ocispec.Descriptor, _ int64, r io.Reader) io.Reader {
				if d.Digest == large {
					return &brokenReader{r, 17 << 20}
				}
				return r
			}
			if _, err := bundle.Write(t.Context(), path, bundle.Options{Lock: f.lock}, f); !errors.Is(err, errBroken) {
				t.Fatalf("error %v", err)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the bundle exists before it is complete: %v", err)
			}
			f.breaks = nil
			f.requests()
			resumed := false
			result := write(t, path, bundle.Options{Lock: f.lock, Progress: func(d ocispec.Descriptor, _ int64, r bool) {
				resumed = resumed || d.Digest == large && r
			}}, f)
			offsets := f.requests()[large]
			if len(offsets) != 1 || offsets[0] == 0 {
				t.Errorf("requests for the large layer from %v, want one from the middle", offsets)
			}
			if result.Resumed == 0 || result.Discarded || !resumed {
				t.Errorf("result %+v, progress %v", result, resumed)
			}
			if !bytes.Equal(readFile(t, whole), readFile(t, path)) {
				t.Error("the bundle differs from one that was not interrupted")
			}
			if _, err := os.Stat(path + bundle.PartialSuffix); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the partial file exists: %v", err)
			}
		})
	}
}

func TestEachPartialFileGivesTheSameBundle(t *testing.T) {
	f := newFleet(t, 11<<20)
	for _, name := range names {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		write(t, path, bundle.Options{Lock: f.lock}, f)
		whole := readFile(t, path)
		for _, size := range []int{0, 1, 511, 5000, 4 << 20, 4<<20 + 1, 9 << 20, len(whole) - 1025, len(whole) - 1, len(whole), len(whole) + 7} {
			partial := append(slices.Clone(whole), "trailer"...)[:size]
			if err := os.WriteFile(path+bundle.PartialSuffix, partial, 0o600); err != nil {
				t.Fatal(err)
			}
			write(t, path, bundle.Options{Lock: f.lock}, f)
			if !bytes.Equal(readFile(t, path), whole) {
				t.Errorf("%s continued after %d bytes differs", name, size)
			}
		}
	}
}

func TestDamagedPartialFileIsRepaired(t *testing.T) {
	f := newFleet(t, 11<<20)
	for _, name := range names {
		path := filepath.Join(t.TempDir(), name)
		write(t, path, bundle.Options{Lock: f.lock}, f)
		whole := readFile(t, path)
		for _, at := range []int{3, 600, 5 << 20, len(whole) - 3000} {
			damaged := slices.Clone(whole)
			damaged[at] ^= 1
			if err := os.WriteFile(path+bundle.PartialSuffix, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			result := write(t, path, bundle.Options{Lock: f.lock}, f)
			if !bytes.Equal(readFile(t, path), whole) {
				t.Errorf("%s with a damaged byte %d: %+v", name, at, result)
			}
		}
	}
}

func TestPartialFileOfAnotherLockIsDiscarded(t *testing.T) {
	f := newFleet(t, 11<<20)
	other := locked(t, map[string]ocispec.Descriptor{"registry.example/app:v2": f.app})
	for _, name := range names {
		path, want := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), name)
		write(t, want, bundle.Options{Lock: f.lock}, f)
		write(t, path, bundle.Options{Lock: other}, f)
		if err := os.Rename(path, path+bundle.PartialSuffix); err != nil {
			t.Fatal(err)
		}
		result := write(t, path, bundle.Options{Lock: f.lock}, f)
		if !result.Discarded || !bytes.Equal(readFile(t, path), readFile(t, want)) {
			t.Errorf("%s: result %+v", name, result)
		}
	}
}

func TestContentThatIsWrongInTheRegistryIsRefused(t *testing.T) {
	f := newFleet(t, 11<<20)
	for what, change := range map[string]func(io.Reader) io.Reader{
		"other bytes": func(r io.Reader) io.Reader {
			return io.MultiReader(strings.NewReader("x"), io.LimitReader(r, 11<<20-1))
		},
		"more bytes":  func(r io.Reader) io.Reader { return io.MultiReader(r, strings.NewReader("x")) },
		"fewer bytes": func(r io.Reader) io.Reader { return io.LimitReader(r, 11<<20-1) },
	} {
		path := filepath.Join(t.TempDir(), "bundle.tar.zst")
		f.breaks = func(d ocispec.Descriptor, _ int64, r io.Reader) io.Reader {
			if d.Digest == digest.FromBytes(f.large) {
				return change(r)
			}
			return r
		}
		_, err := bundle.Write(t.Context(), path, bundle.Options{Lock: f.lock}, f)
		var known *imagepin.Error
		if err == nil || what != "fewer bytes" && (!errors.As(err, &known) || known.Reason != imagepin.ContentCorrupt) {
			t.Errorf("%s: error %v", what, err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the bundle exists: %v", what, err)
		}
		f.breaks = nil
		write(t, path, bundle.Options{Lock: f.lock}, f)
		if err := verify(t, path); err != nil {
			t.Errorf("%s, then right: %v", what, err)
		}
	}
}

func TestDamagedStartOfALayerIsFetchedAgain(t *testing.T) {
	f := newFleet(t, 11<<20)
	path := filepath.Join(t.TempDir(), "bundle.tar")
	write(t, path, bundle.Options{Lock: f.lock}, f)
	whole := readFile(t, path)
	damaged := slices.Clone(whole[:9<<20])
	damaged[1<<20] ^= 1 // the digest shows it only after the end of the layer
	if err := os.WriteFile(path+bundle.PartialSuffix, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	f.requests()
	result := write(t, path, bundle.Options{Lock: f.lock}, f)
	if offsets := f.requests()[digest.FromBytes(f.large)]; len(offsets) != 2 || offsets[0] == 0 || offsets[1] != 0 {
		t.Errorf("requests for the large layer from %v, want one from the middle and one from the start", offsets)
	}
	if !result.Discarded || !bytes.Equal(readFile(t, path), whole) {
		t.Errorf("the bundle differs, or the result: %+v", result)
	}
}

func TestCanceledWriteReturns(t *testing.T) {
	f := newFleet(t, 60<<20)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := bundle.Write(ctx, filepath.Join(t.TempDir(), "bundle.tar.zst"), bundle.Options{
		Lock: f.lock, Progress: func(d ocispec.Descriptor, offset int64, _ bool) {
			if offset > 10<<20 {
				cancel()
			}
		},
	}, f)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestTwoWritersOfOneFileAreRefused(t *testing.T) {
	f := newFleet(t, 11<<20)
	path := filepath.Join(t.TempDir(), "bundle.tar")
	var second error
	asked := false
	write(t, path, bundle.Options{Lock: f.lock, Progress: func(ocispec.Descriptor, int64, bool) {
		if !asked {
			asked = true
			_, second = bundle.Write(t.Context(), path, bundle.Options{Lock: f.lock}, f)
		}
	}}, f)
	if second == nil || !strings.Contains(second.Error(), "another process writes") {
		t.Errorf("error %v", second)
	}
}
