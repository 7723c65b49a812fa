package bundle_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

func FuzzOpen(f *testing.F) {
	fl := newFleet(f, 5000)
	for _, name := range names {
		path := filepath.Join(f.TempDir(), name)
		write(f, path, bundle.Options{Lock: fl.lock, Platforms: platformsOf(f, "linux/amd64")}, fl)
		f.Add(readFile(f, path))
	}
	good := layoutOf(f, unpack(f, goodArchive(f)))
	f.Add(pack(f, good.parts(f)))
	path := filepath.Join(f.TempDir(), "bundle")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(t, path); err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error %v", err)
		}
	})
}

// FuzzMetadata changes metadata whose digests are right.
func FuzzMetadata(f *testing.F) {
	m := newMemory()
	d := m.manifest(f, "linux/amd64", random(1, 20))
	index := m.index(f, d)
	f.Add(m.blobs[index.Digest], m.blobs[d.Digest])
	path := filepath.Join(f.TempDir(), "bundle")
	f.Fuzz(func(t *testing.T, first, second []byte) {
		root := descriptor(index.MediaType, first)
		if err := os.WriteFile(path, pack(t, single(t, root, first, second).parts(t)), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := verify(t, path); err != nil && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error %v", err)
		}
	})
}
