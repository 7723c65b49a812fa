package download

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func zstded(t *testing.T, archive []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w, err := zstd.NewWriter(&buf)
	noError(t, err)
	_, err = w.Write(archive)
	noError(t, err)
	noError(t, w.Close())
	return buf.Bytes()
}

// archiveNamed returns an archive of one file.
func archiveNamed(t *testing.T, name string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	noError(t, w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: 4}))
	_, err := w.Write([]byte("data"))
	noError(t, err)
	noError(t, w.Close())
	return buf.Bytes()
}

// TestWrongMediaType checks that layers are unpacked whose media type has no compression or another one, while they are
// downloaded and from the content store.
func TestWrongMediaType(t *testing.T) {
	archive := archiveOf(t, 3, 1000)
	small := []byte{} // it fits in less than a block
	const plain = ocispec.MediaTypeImageLayer
	for name, l := range map[string]testLayer{
		"gzip":                              layerOf(plain, zipped(t, archive), archive),
		"gzip, foreign":                     layerOf(foreignLayer, zipped(t, archive), archive),
		"gzip, Docker":                      layerOf(images.MediaTypeDockerSchema2Layer, zipped(t, archive), archive),
		"gzip, less than a block":           layerOf(plain, zipped(t, small), small),
		"zstd":                              layerOf(plain, zstded(t, archive), archive),
		"zstd as gzip":                      layerOf(ocispec.MediaTypeImageLayerGzip, zstded(t, archive), archive),
		"gzip as zstd":                      layerOf(ocispec.MediaTypeImageLayerZstd, zipped(t, archive), archive),
		"uncompressed":                      layerOf(plain, archive, archive),
		"uncompressed as gzip":              layerOf(ocispec.MediaTypeImageLayerGzip, archive, archive),
		"uncompressed, less than a block":   layerOf(plain, []byte("x"), []byte("x")),
		"uncompressed, a name as from gzip": layerOf(plain, archiveNamed(t, "\x1f\x8b\x08"), archiveNamed(t, "\x1f\x8b\x08")),
		"uncompressed, a name as from zstd": layerOf(plain, archiveNamed(t, "\x28\xb5\x2f\xfd"), archiveNamed(t, "\x28\xb5\x2f\xfd")),
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, l)
			noError(t, n.fetch())
			if name == "uncompressed, less than a block" {
				if _, err := n.apply(); err == nil {
					t.Error("no archive was unpacked")
				}
				return
			}
			applied, err := n.apply()
			noError(t, err)
			noError(t, n.pull.End(nil))
			stored, err := Decompressing(n.Content, apply.NewFileSystemApplier(n.Content)).Apply(n.Context(t), l.desc, upperOf(t.TempDir()))
			noError(t, err)
			if applied.Digest != l.diffID() || stored.Digest != l.diffID() {
				t.Errorf("unpacked %s and from the content store %s, want %s", applied.Digest, stored.Digest, l.diffID())
			}
		})
	}
}

// TestEmptyLayer checks that a layer of 0 bytes is written without a request, and unpacked.
func TestEmptyLayer(t *testing.T) {
	for _, mediaType := range []string{ocispec.MediaTypeImageLayer, ocispec.MediaTypeImageLayerGzip, images.MediaTypeDockerSchema2LayerGzip} {
		n := newNode(t, layerOf(mediaType, nil, nil))
		for range 2 {
			noError(t, n.fetch())
		}
		if n.body.ctx != nil {
			t.Errorf("%s: the layer was requested", mediaType)
		}
		applied, err := n.apply()
		if err != nil || applied.Digest != n.layer.diffID() {
			t.Errorf("%s: unpacked %s, %v; want %s", mediaType, applied.Digest, err, n.layer.diffID())
		}
		noError(t, n.pull.End(nil))
		n.checkStored(t)
	}
	l := layerOf(ocispec.MediaTypeImageLayer, []byte("content"), nil)
	l.desc.Size = 0
	if err := newNode(t, l).fetch(); err == nil {
		t.Error("a layer without a size was fetched")
	}
}

// TestSparse checks that a sparse file in the format of POSIX is unpacked as containerd does, and that GNU's own format is
// rejected as in containerd.
func TestSparse(t *testing.T) {
	for format, unpacked := range map[string]bool{"posix": true, "gnu": false} {
		dir := t.TempDir()
		noError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("data"), 0o600))
		noError(t, os.Truncate(filepath.Join(dir, "file"), 1<<20))
		archive, err := exec.Command("tar", "-C", dir, "--sparse", "--format="+format, "-c", "file").Output()
		noError(t, err)
		if len(archive) > 1<<19 {
			t.Fatalf("%s: the archive has %d bytes, it is not sparse", format, len(archive))
		}
		n := newNode(t, layerOf(ocispec.MediaTypeImageLayer, archive, archive))
		noError(t, n.fetch())
		applied, err := n.apply()
		if (err == nil) != unpacked {
			t.Errorf("%s: %v", format, err)
		}
		if !unpacked {
			continue
		}
		info, err := os.Stat(filepath.Join(n.upper, "file"))
		noError(t, err)
		if info.Size() != 1<<20 || applied.Digest != n.layer.diffID() {
			t.Errorf("%s: the file has %d bytes, the digest is %s", format, info.Size(), applied.Digest)
		}
	}
}

// TestLinkBelow checks that a hard link to a file of a lower layer is unpacked where the layers below are in the same
// directory, and rejected elsewhere, as in containerd.
func TestLinkBelow(t *testing.T) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	noError(t, w.WriteHeader(&tar.Header{Name: "link", Linkname: "below", Typeflag: tar.TypeLink}))
	noError(t, w.Close())
	n := newNode(t, layerOf(ocispec.MediaTypeImageLayer, buf.Bytes(), buf.Bytes()))
	noError(t, n.fetch())
	if _, err := n.apply(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: %v", err)
	}
	noError(t, n.pull.End(nil))
	noError(t, os.WriteFile(filepath.Join(n.upper, "below"), []byte("data"), 0o600))
	_, err := n.applier.Apply(n.Context(t), n.layer.desc, upperOf(n.upper))
	noError(t, err)
	if got, err := os.ReadFile(filepath.Join(n.upper, "link")); err != nil || string(got) != "data" {
		t.Errorf("the link has %q, %v", got, err)
	}
}
