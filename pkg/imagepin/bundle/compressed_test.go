package bundle_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

// TestCompressedBundlesAreRefused checks that the error of a bundle that another tool has compressed names the tool, and the
// command that decompresses it.
func TestCompressedBundlesAreRefused(t *testing.T) {
	good := goodArchive(t)
	zstdWriter := func(w io.Writer) io.WriteCloser {
		e, err := zstd.NewWriter(w)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	compress := func(newWriter func(io.Writer) io.WriteCloser, data []byte) []byte {
		var b bytes.Buffer
		w := newWriter(&b)
		_, err := w.Write(data)
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	gzipWriter := func(w io.Writer) io.WriteCloser { return gzip.NewWriter(w) }
	sealed := filepath.Join(t.TempDir(), "bundle.tar.zst")
	m := newMemory()
	d := m.manifest(t, "linux/amd64", random(9, 300))
	d.Platform = nil
	write(t, sealed, bundle.Options{Lock: locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": d})}, m)
	frame, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"gzip":        {compress(gzipWriter, good), "gunzip -c FILE"},
		"gzip, small": {compress(gzipWriter, nil), "gunzip -c FILE"},
		"gzip, zstd":  {compress(gzipWriter, readFile(t, sealed)), "gunzip -c FILE"},
		"xz":          {append([]byte("\xfd7zXZ\x00"), good...), "xz -dc FILE"},
		"bzip2":       {append([]byte("BZh9"), good...), "bunzip2 -c FILE"},
		"lz4":         {append([]byte("\x04\x22\x4d\x18"), good...), "lz4 -dc FILE"},
		"lzip":        {append([]byte("LZIP\x01"), good...), "lzip -dc FILE"},
		"zip":         {append([]byte("PK\x03\x04"), good...), "unzip -p FILE"},
		"zstd":        {compress(zstdWriter, good), "zstd -d"},
		"zstd twice":  {compress(zstdWriter, readFile(t, sealed)), "zstd -d"},
		"zstd frame":  {frame.EncodeAll(readFile(t, sealed), nil), "zstd -dc FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, c.data, c.text)
			path := filepath.Join(t.TempDir(), "bundle")
			if err := os.WriteFile(path, c.data, 0o600); err != nil {
				t.Fatal(err)
			}
			if is, err := bundle.Is(path); !is || err != nil {
				t.Errorf("Is: got %v, %v: the file would be read as a lock", is, err)
			}
		})
	}
}
