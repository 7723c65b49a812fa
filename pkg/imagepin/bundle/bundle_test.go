package bundle_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

func parsePlatform(t testing.TB, text string) ocispec.Platform {
	t.Helper()
	p, err := platforms.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// random returns n bytes that do not compress, which depend on the seed.
func random(seed uint64, n int) []byte {
	data := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(data)
	return data
}

// fleet is a source with two images, one of which is for two platforms and has an attestation.
type fleet struct {
	*memory
	lock                  *lock.Lock
	app, amd64, arm64     ocispec.Descriptor
	attestation, tool     ocispec.Descriptor
	shared, large, armTop []byte
}

func newFleet(t testing.TB, large int) *fleet {
	f := &fleet{memory: newMemory(), shared: random(1, 3000), large: random(2, large), armTop: random(3, 2000)}
	f.amd64 = f.manifest(t, "linux/amd64", f.shared, f.large)
	f.arm64 = f.manifest(t, "linux/arm64", f.armTop)
	f.attestation = f.manifest(t, "unknown/unknown", random(4, 500))
	f.app = f.index(t, f.amd64, f.arm64, f.attestation)
	f.tool = f.manifest(t, "linux/amd64", f.shared, random(5, 700))
	f.tool.Platform = nil
	f.lock = locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": f.app, "registry.example/tool:v2": f.tool})
	return f
}

func write(t testing.TB, path string, o bundle.Options, source bundle.Source) *bundle.Result {
	t.Helper()
	result, err := bundle.Write(t.Context(), path, o, source)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func open(t testing.TB, path string) *bundle.Bundle {
	t.Helper()
	b, err := bundle.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

var names = []string{"bundle.tar", "bundle.tar.zst"}

func TestWrittenBundleIsRead(t *testing.T) {
	f := newFleet(t, 9<<20)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			result := write(t, path, bundle.Options{Lock: f.lock}, f)
			b := open(t, path)
			want, err := f.lock.Digest()
			if err != nil {
				t.Fatal(err)
			}
			if got, err := b.Lock().Digest(); err != nil || got != want || result.Lock != want {
				t.Errorf("lock %s, result %s, want %s", got, result.Lock, want)
			}
			if b.Platforms() != nil || b.Since() != "" || len(b.Absent()) > 0 {
				t.Errorf("platforms %v, since %q, absent %v", b.Platforms(), b.Since(), b.Absent())
			}
			for _, d := range []ocispec.Descriptor{f.app, f.amd64, f.arm64, f.attestation, f.tool} {
				if data, err := b.Blob(d.Digest); err != nil || !bytes.Equal(data, f.blobs[d.Digest]) {
					t.Errorf("%s differs or is missing", d.Digest)
				}
			}
			for d := range f.blobs {
				if !b.Has(d) {
					t.Errorf("%s is missing", d)
				}
			}
			if root, ok := b.Root(f.app.Digest); !ok || root.MediaType != f.app.MediaType || root.Size != f.app.Size {
				t.Errorf("root %+v, %v", root, ok)
			}
			var done, total int64
			if err := b.Verify(t.Context(), func(d, n int64) { done, total = d, n }); err != nil {
				t.Fatal(err)
			}
			if done != total || total != b.Size() || total != result.Size {
				t.Errorf("progress ended with %d of %d, the archive has %d bytes, the result %d", done, total, b.Size(), result.Size)
			}
			got := layers(t, b, func(d ocispec.Descriptor, data []byte) bool {
				if !bytes.Equal(data, f.blobs[d.Digest]) {
					t.Errorf("%s differs", d.Digest)
				}
				return d.Size != 700
			})
			wantLayers := []digest.Digest{
				digest.FromBytes(f.shared), digest.FromBytes(f.large), digest.FromBytes(f.armTop), digest.FromBytes(random(4, 500)),
			}
			if !slices.Equal(got, wantLayers) {
				t.Errorf("layers %v, want %v", got, wantLayers)
			}
		})
	}
}

// layers returns the blobs of a bundle that are no metadata, in their order, if accept accepts them.
func layers(t *testing.T, b *bundle.Bundle, accept func(ocispec.Descriptor, []byte) bool) (got []digest.Digest) {
	t.Helper()
	isLayer := func(d ocispec.Descriptor) bool {
		_, err := b.Blob(d.Digest)
		return err != nil
	}
	err := b.ReadBlobs(t.Context(), isLayer, func(d ocispec.Descriptor, r io.Reader) error {
		data, err := io.ReadAll(r)
		if accept(d, data) {
			got = append(got, d.Digest)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEqualOptionsGiveEqualBytes(t *testing.T) {
	f := newFleet(t, 9<<20)
	for _, name := range names {
		first, second := filepath.Join(t.TempDir(), name), filepath.Join(t.TempDir(), name)
		write(t, first, bundle.Options{Lock: f.lock}, f)
		write(t, second, bundle.Options{Lock: f.lock}, f)
		if !bytes.Equal(readFile(t, first), readFile(t, second)) {
			t.Errorf("%s: two writes differ", name)
		}
	}
}
