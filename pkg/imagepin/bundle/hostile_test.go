package bundle_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// part is an entry of an archive that a test changes.
type part struct {
	header tar.Header
	data   []byte
}

func blobPart(data []byte) part {
	return part{tar.Header{Typeflag: tar.TypeReg, Name: blobName(digest.FromBytes(data)), Size: int64(len(data)), Mode: 0o644}, data}
}

func blobName(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

func unpack(t testing.TB, data []byte) []part {
	t.Helper()
	var parts []part
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, part{tar.Header{Typeflag: h.Typeflag, Name: h.Name, Size: h.Size, Mode: h.Mode}, content})
	}
}

func pack(t testing.TB, parts []part) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, p := range parts {
		h := p.header
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(p.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// layout is the content of a bundle that is written without the writer.
type layout struct {
	index       ocispec.Index
	description bundle.Description
	lock        []byte
	blobs       [][]byte // in their order
}

// layoutOf returns the content of the bundle in parts.
func layoutOf(t testing.TB, parts []part) *layout {
	t.Helper()
	l := &layout{lock: parts[4].data}
	mustParse(t, parts[1].data, &l.index)
	mustParse(t, parts[3].data, &l.description)
	for _, p := range parts[5:] {
		l.blobs = append(l.blobs, p.data)
	}
	return l
}

func mustParse(t testing.TB, data []byte, v any) {
	t.Helper()
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatal(err)
	}
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func descriptor(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// parts returns the entries of the layout, with the digests of its own manifest, description and lock.
func (l *layout) parts(t testing.TB) []part {
	t.Helper()
	l.description.Lock = digest.FromBytes(l.lock)
	config := mustJSON(t, l.description)
	own := mustJSON(t, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: bundle.ArtifactType,
		Config: descriptor(bundle.DescriptionMediaType, config), Layers: []ocispec.Descriptor{descriptor(lock.MediaType, l.lock)},
	})
	last := descriptor(ocispec.MediaTypeImageManifest, own)
	last.ArtifactType = bundle.ArtifactType
	l.index.Manifests[len(l.index.Manifests)-1] = last
	file := func(name string, data []byte) part {
		return part{tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644}, data}
	}
	parts := []part{file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)), file("index.json", mustJSON(t, l.index)), blobPart(own), blobPart(config), blobPart(l.lock)}
	for _, b := range l.blobs {
		parts = append(parts, blobPart(b))
	}
	return parts
}

// single returns a layout with one image without a name, whose root and content are blobs.
func single(t testing.TB, root ocispec.Descriptor, blobs ...[]byte) *layout {
	t.Helper()
	text, err := locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": root}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	name := map[string]string{"io.containerd.image.name": "registry.example/app:v1", ocispec.AnnotationRefName: "registry.example/app:v1"}
	l := &layout{lock: text, blobs: blobs}
	root.Annotations = name
	l.index = ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{root, {}}}
	return l
}

// verify opens and verifies a file.
func verify(t testing.TB, path string) error {
	b, err := bundle.Open(path)
	if err != nil {
		return err
	}
	defer func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}()
	return b.Verify(t.Context(), nil)
}

// refused checks that an archive is refused with an error that has a text, and that nothing is written.
func refused(t *testing.T, data []byte, text string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "bundle")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	t.Setenv("TMPDIR", work)
	t.Chdir(work)
	err := verify(t, path)
	var known *imagepin.Error
	if !errors.As(err, &known) || known.Reason != imagepin.InvalidBundle || !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("error %v, want InvalidBundle", err)
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
	if after := readFile(t, path); !bytes.Equal(after, data) {
		t.Error("the bundle was changed")
	}
	for _, d := range []string{work, dir} {
		files, err := os.ReadDir(d)
		if err != nil {
			t.Fatal(err)
		}
		if d == work && len(files) > 0 || d == dir && len(files) != 1 {
			t.Errorf("%s has %v", d, files)
		}
	}
}

func goodArchive(t testing.TB) []byte {
	path := filepath.Join(t.TempDir(), "bundle.tar")
	f := newFleet(t, 5000)
	write(t, path, bundle.Options{Lock: f.lock}, f)
	return readFile(t, path)
}

func TestBuiltArchiveIsAccepted(t *testing.T) {
	// The tests below change an archive that was built so.
	good := goodArchive(t)
	parts := unpack(t, good)
	if !bytes.Equal(pack(t, parts), good) {
		t.Error("the entries of a bundle, packed again, differ")
	}
	if !bytes.Equal(pack(t, layoutOf(t, parts).parts(t)), good) {
		t.Error("the layout of a bundle, written again, differs")
	}
	path := filepath.Join(t.TempDir(), "bundle")
	image, blobs := newImage(t)
	if err := os.WriteFile(path, pack(t, single(t, image, blobs...).parts(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, path); err != nil {
		t.Error(err)
	}
}

// newImage returns a manifest with a configuration and a layer.
func newImage(t testing.TB) (ocispec.Descriptor, [][]byte) {
	m := newMemory()
	d := m.manifest(t, "linux/amd64", random(7, 600))
	d.Platform = nil
	var manifest ocispec.Manifest
	mustParse(t, m.blobs[d.Digest], &manifest)
	return d, [][]byte{m.blobs[d.Digest], m.blobs[manifest.Config.Digest], m.blobs[manifest.Layers[0].Digest]}
}

func TestChangedEntriesAreRefused(t *testing.T) {
	good := goodArchive(t)
	last := len(unpack(t, good)) - 1
	for name, c := range map[string]struct {
		change func(p []part) []part
		text   string
	}{
		"layers in another order":     {func(p []part) []part { p[last], p[last-1] = p[last-1], p[last]; return p }, "in its place"},
		"index.json first":            {func(p []part) []part { p[0], p[1] = p[1], p[0]; return p }, `entry "oci-layout"`},
		"a manifest before the index": {func(p []part) []part { p[5], p[6] = p[6], p[5]; return p }, "in its place"},
		"no index.json":               {func(p []part) []part { return slices.Delete(p, 1, 2) }, `entry "index.json"`},
		"no lock":                     {func(p []part) []part { return slices.Delete(p, 4, 5) }, "in its place"},
		"no configuration":            {func(p []part) []part { return slices.Delete(p, 10, 11) }, "in its place"},
		"no layer at the end":         {func(p []part) []part { return p[:last] }, "the archive ends before it"},
		"no layer":                    {func(p []part) []part { return slices.Delete(p, last-1, last) }, "in its place"},
		"nothing":                     {func([]part) []part { return nil }, "oci-layout"},
		"another blob":                {func(p []part) []part { return append(p, blobPart([]byte("more"))) }, "nothing refers to it"},
		"a blob twice":                {func(p []part) []part { return append(p, p[last]) }, "nothing refers to it"},
		"index.json twice":            {func(p []part) []part { return slices.Insert(p, 2, p[1]) }, "in its place"},
		"a directory": {func(p []part) []part {
			return slices.Insert(p, 2, part{tar.Header{Typeflag: tar.TypeDir, Name: "blobs/", Mode: 0o755}, nil})
		}, "in its place"},
		"another name": {func(p []part) []part {
			return append(p, part{tar.Header{Typeflag: tar.TypeReg, Name: "manifest.json", Mode: 0o644, Size: 2}, []byte("{}")})
		}, "manifest.json"},
		"a path upwards":    {func(p []part) []part { p[last].header.Name = "../" + p[last].header.Name; return p }, "in its place"},
		"an absolute path":  {func(p []part) []part { p[last].header.Name = "/" + p[last].header.Name; return p }, "in its place"},
		"a path with a dot": {func(p []part) []part { p[0].header.Name = "./oci-layout"; return p }, "in its place"},
		"a symbolic link": {func(p []part) []part {
			p[last].header.Typeflag, p[last].header.Linkname, p[last].header.Size = tar.TypeSymlink, "/etc/passwd", 0
			return p
		}, "not a regular file"},
		"a hard link": {func(p []part) []part {
			p[last].header.Typeflag, p[last].header.Linkname, p[last].header.Size = tar.TypeLink, "oci-layout", 0
			return p
		}, "not a regular file"},
		"a device":     {func(p []part) []part { p[last].header.Typeflag, p[last].header.Size = tar.TypeBlock, 0; return p }, "not a regular file"},
		"a FIFO":       {func(p []part) []part { p[last].header.Typeflag, p[last].header.Size = tar.TypeFifo, 0; return p }, "not a regular file"},
		"a mode":       {func(p []part) []part { p[last].header.Mode = 0o4755; return p }, "its header differs"},
		"an owner":     {func(p []part) []part { p[last].header.Uid = 1000; return p }, "its header differs"},
		"a time":       {func(p []part) []part { p[last].header.ModTime = time.Unix(1, 0); return p }, "its header differs"},
		"a pax record": {func(p []part) []part { p[last].header.PAXRecords = map[string]string{"IMAGEPIN.x": "y"}; return p }, blobName(digest.FromBytes(nil))[:13]},
		"a pax size": {func(p []part) []part {
			p[last].header.Format = tar.FormatPAX
			p[last].header.ModTime = time.Unix(1, 5)
			return p
		}, "blobs/sha256"},
		"the GNU format": {func(p []part) []part { p[last].header.Format = tar.FormatGNU; return p }, "its header differs"},
		"a global pax header": {func(p []part) []part {
			return slices.Insert(p, 0, part{tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "g", PAXRecords: map[string]string{"a": "b"}}, nil})
		}, "oci-layout"},
		"a blob too long": {func(p []part) []part {
			p[last].data = append(slices.Clone(p[last].data), 'x')
			p[last].header.Size++
			return p
		}, "bytes, want"},
		"a blob too short": {func(p []part) []part { p[last].data = p[last].data[1:]; p[last].header.Size--; return p }, "bytes, want"},
		"other content":    {func(p []part) []part { p[last].data = bytes.Repeat([]byte{1}, len(p[last].data)); return p }, "does not match its digest"},
		"another manifest": {func(p []part) []part { p[6].data = bytes.Repeat([]byte{' '}, len(p[6].data)); return p }, "its content has the digest"},
		"another layout version": {func(p []part) []part {
			p[0].data = bytes.Replace(p[0].data, []byte("1.0.0"), []byte("2.0.0"), 1)
			return p
		}, "1.0.0"},
		"a large index.json":         {func(p []part) []part { p[1].data = make([]byte, 17<<20); p[1].header.Size = 17 << 20; return p }, "the limit is"},
		"an index.json that is none": {func(p []part) []part { p[1].data = bytes.Repeat([]byte("["), len(p[1].data)); return p }, `entry "index.json"`},
	} {
		t.Run(name, func(t *testing.T) { refused(t, pack(t, c.change(unpack(t, good))), c.text) })
	}
}

func TestContradictionsAreRefused(t *testing.T) {
	good := unpack(t, goodArchive(t))
	image, blobs := newImage(t)
	other := []byte(strings.Repeat(" ", 10) + string(blobs[0])) // the same manifest with another digest
	sized := func(size int64) *layout {
		var m ocispec.Manifest
		mustParse(t, blobs[0], &m)
		m.Layers[0].Size = size
		data := mustJSON(t, m)
		return single(t, descriptor(ocispec.MediaTypeImageManifest, data), data, blobs[1], blobs[2])
	}
	indexOf := func(children ...ocispec.Descriptor) []byte {
		return mustJSON(t, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: children})
	}
	for name, c := range map[string]struct {
		layout func(l *layout) *layout
		text   string
	}{
		"a root that the lock does not name": {func(l *layout) *layout {
			l.index.Manifests = slices.Insert(l.index.Manifests, 0, descriptor(ocispec.MediaTypeImageManifest, other))
			return l
		}, "the lock names 2"},
		"a root is missing": {func(l *layout) *layout { l.index.Manifests = l.index.Manifests[1:]; return l }, "does not list registry.example/app@"},
		"another name": {func(l *layout) *layout {
			l.index.Manifests[0].Annotations[ocispec.AnnotationRefName] = "registry.example/evil:v1"
			return l
		}, "differs from what the lock requires"},
		"a platform of a root":         {func(l *layout) *layout { l.index.Manifests[0].Platform = &ocispec.Platform{OS: "linux"}; return l }, "differs from what the lock requires"},
		"a root of another media type": {func(l *layout) *layout { l.index.Manifests[0].MediaType = ocispec.MediaTypeImageManifest; return l }, "but its descriptor"},
		"a manifest as an index": {func(*layout) *layout {
			d := image
			d.MediaType = ocispec.MediaTypeImageIndex
			return single(t, d, blobs...)
		}, "has the media type"},
		"a root that is a layer": {func(*layout) *layout {
			d := image
			d.MediaType = ocispec.MediaTypeImageLayer
			return single(t, d, blobs...)
		}, "want an index or a manifest"},
		"a root of another size":    {func(*layout) *layout { d := image; d.Size++; return single(t, d, blobs...) }, "bytes, want"},
		"a root of a negative size": {func(*layout) *layout { d := image; d.Size = -1; return single(t, d, blobs...) }, "has the size -1"},
		"a large root": {func(*layout) *layout {
			data := []byte(fmt.Sprintf("%s%s", blobs[0], strings.Repeat(" ", 9<<20)))
			return single(t, descriptor(ocispec.MediaTypeImageManifest, data), data, blobs[1], blobs[2])
		}, "the limit is"},
		"a layer larger than its descriptor":  {func(*layout) *layout { return sized(599) }, "bytes, want 599"},
		"a layer smaller than its descriptor": {func(*layout) *layout { return sized(601) }, "bytes, want 601"},
		"a layer of a negative size":          {func(*layout) *layout { return sized(-600) }, "has the size -600"},
		"a layer of a huge size":              {func(*layout) *layout { return sized(1 << 62) }, "has the size"},
		"a manifest without a configuration": {func(*layout) *layout {
			data := []byte(`{"schemaVersion":2,"layers":[]}`)
			return single(t, descriptor(ocispec.MediaTypeImageManifest, data), data)
		}, "no configuration"},
		"a digest of another algorithm": {func(*layout) *layout {
			data := []byte(`{"config":{"digest":"sha384:` + strings.Repeat("0", 96) + `","size":1}}`)
			return single(t, descriptor(ocispec.MediaTypeImageManifest, data), data)
		}, "want sha256 or sha512"},
		"a digest with a path": {func(*layout) *layout {
			data := []byte(`{"config":{"digest":"sha256:../../../etc/passwd","size":1}}`)
			return single(t, descriptor(ocispec.MediaTypeImageManifest, data), data)
		}, "digest"},
		"one digest with two sizes": {func(*layout) *layout {
			wrong := image
			wrong.Size += 5
			data := indexOf(image, wrong)
			return single(t, descriptor(ocispec.MediaTypeImageIndex, data), append([][]byte{data}, blobs...)...)
		}, "two sizes"},
		"one digest with two media types": {func(*layout) *layout {
			index := indexOf(image)
			wrong := descriptor(ocispec.MediaTypeImageManifest, index)
			data := indexOf(descriptor(ocispec.MediaTypeImageIndex, index), wrong)
			return single(t, descriptor(ocispec.MediaTypeImageIndex, data), append([][]byte{data, index}, blobs...)...)
		}, "two media types"},
		"deep indexes": {func(*layout) *layout {
			all, next := [][]byte(nil), image
			for range 5 {
				data := indexOf(next)
				next, all = descriptor(ocispec.MediaTypeImageIndex, data), append([][]byte{data}, all...)
			}
			return single(t, next, append(all, blobs...)...)
		}, "nested more than 4 deep"},
		"an index that lists itself": {func(*layout) *layout {
			// Its own digest cannot be known, so the descriptor of what lists it is wrong.
			data := indexOf(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: image.Digest, Size: image.Size})
			return single(t, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: image.Digest, Size: image.Size}, data)
		}, "in its place"},
		"two digests for one reference": {func(l *layout) *layout {
			l.lock = []byte(strings.Replace(string(l.lock), "kbld.carvel.dev/id: registry.example/tool:v2", "kbld.carvel.dev/id: registry.example/app:v1", 1))
			l.lock = []byte(strings.Replace(string(l.lock), "image: registry.example/tool@", "image: registry.example/app@", 1))
			return l
		}, "two digests"},
		"a lock that is none":    {func(l *layout) *layout { l.lock = []byte("hello"); return l }, "InvalidLock"},
		"a lock in another form": {func(l *layout) *layout { l.lock = append([]byte("# comment\n"), l.lock...); return l }, "as imagepin writes it"},
		"omitted without an earlier lock": {func(l *layout) *layout {
			l.description.Omitted = []digest.Digest{digest.FromBytes(random(2, 5000))}
			return l
		}, "there is no earlier lock"},
		"omitted, but present": {func(l *layout) *layout {
			l.description.Since, l.description.Omitted = digest.FromString("old"), []digest.Digest{digest.FromBytes(random(2, 5000))}
			return l
		}, "in its place"},
		"omitted, but no layer": {func(l *layout) *layout {
			l.description.Since, l.description.Omitted = digest.FromString("old"), []digest.Digest{digest.FromString("x")}
			return l
		}, "no image has this layer"},
		"an omitted manifest": {func(l *layout) *layout {
			l.description.Since, l.description.Omitted = digest.FromString("old"), []digest.Digest{digest.FromBytes(good[6].data)}
			return l
		}, "is omitted, but"},
		"absent for all platforms": {func(l *layout) *layout {
			l.description.Absent = []digest.Digest{digest.FromString("x")}
			return l
		}, "it is for all platforms"},
		"absent, but present": {func(l *layout) *layout {
			l.description.Platforms, l.description.Absent = []string{"linux/amd64"}, []digest.Digest{digest.FromBytes(good[7].data)}
			return l
		}, "in its place"},
		"absent, but of a chosen platform": {func(*layout) *layout {
			index := indexOf(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: image.Digest, Size: image.Size, Platform: &ocispec.Platform{OS: "linux", Architecture: "amd64"}})
			l := single(t, descriptor(ocispec.MediaTypeImageIndex, index), index)
			l.description.Platforms, l.description.Absent = []string{"linux/amd64"}, []digest.Digest{image.Digest}
			return l
		}, "but the bundle is for its platform linux/amd64"},
		"absent, but not listed": {func(l *layout) *layout {
			l.description.Platforms, l.description.Absent = []string{"linux/amd64"}, []digest.Digest{digest.FromString("x")}
			return l
		}, "no index lists it"},
		"platforms in another order": {func(l *layout) *layout { l.description.Platforms = []string{"linux/arm64", "linux/amd64"}; return l }, "not sorted"},
		"a platform in another form": {func(l *layout) *layout { l.description.Platforms = []string{"linux/aarch64"}; return l }, "platform"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, pack(t, c.layout(layoutOf(t, slices.Clone(good))).parts(t)), c.text) })
	}
}

func TestDamagedFilesAreRefused(t *testing.T) {
	good := goodArchive(t)
	t.Run("not a regular file", func(t *testing.T) {
		if _, err := bundle.Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("no file", func(t *testing.T) {
		if _, err := bundle.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error %v", err)
		}
	})
	frame := func(data []byte, o ...zstd.EOption) []byte {
		e, err := zstd.NewWriter(nil, append([]zstd.EOption{zstd.WithSingleSegment(true)}, o...)...)
		if err != nil {
			t.Fatal(err)
		}
		return e.EncodeAll(data, nil)
	}
	sealed := func(parts ...[]byte) []byte { // with the checksum at the end
		all := slices.Concat(parts...)
		sum := crc32.Checksum(all, crc32.MakeTable(crc32.Castagnoli))
		return append(append(all, 0x5b, 0x2a, 0x4d, 0x18, 4, 0, 0, 0), byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
	}
	skippable := append([]byte{0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0}, "abcd"...)
	whole := sealed(frame(good))
	bomb := func() []byte {
		m := newMemory()
		d := m.manifest(t, "linux/amd64", make([]byte, 300<<20))
		d.Platform = nil
		path := filepath.Join(t.TempDir(), "bundle.tar")
		write(t, path, bundle.Options{Lock: locked(t, map[string]ocispec.Descriptor{"registry.example/bomb:v1": d})}, m)
		var frames [][]byte
		for part := range slices.Chunk(readFile(t, path), bundle.FrameSize) {
			frames = append(frames, frame(part))
		}
		return sealed(frames...)
	}
	var streamed bytes.Buffer // as zstd does it for a pipe
	e, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.Write(good[:1000])
	if err := errors.Join(err, e.Flush()); err != nil {
		t.Fatal(err)
	}
	_, err = e.Write(good[1000:])
	if err := errors.Join(err, e.Close()); err != nil {
		t.Fatal(err)
	}
	dictionary := slices.Clone(frame(good))
	dictionary[4] |= 1
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "whole"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := verify(t, filepath.Join(dir, "whole")); err != nil {
		t.Errorf("an archive in one frame: %v", err)
	}
	for name, c := range map[string]struct {
		data []byte
		text string
	}{
		"empty":                      {nil, "truncated"},
		"text":                       {[]byte(strings.Repeat("hello ", 1000)), "oci-layout"},
		"zeros":                      {make([]byte, 10240), "oci-layout"},
		"truncated":                  {good[:len(good)-1024], "truncated"},
		"half of the end":            {good[:len(good)-512], "truncated"},
		"zeros after the end":        {append(slices.Clone(good), make([]byte, 512)...), "after the end"},
		"data after the end":         {append(slices.Clone(good), 'x'), "after the end"},
		"data after the frames":      {append(slices.Clone(whole), "xyz123"...), "after the last zstd frame"},
		"a byte after the frames":    {append(slices.Clone(whole), 0x28), "after the last zstd frame"},
		"no checksum":                {frame(good), "truncated"},
		"a wrong checksum":           {append(slices.Clone(frame(good)), sealed()...), "does not match its checksum"},
		"another skippable frame":    {sealed(frame(good), skippable), "not a zstd frame"},
		"a skippable frame first":    {sealed(skippable, frame(good)), "oci-layout"},
		"an empty frame":             {sealed(frame(good), frame(nil, zstd.WithZeroFrames(true))), "not as imagepin writes it"},
		"a frame after the end":      {sealed(frame(append(slices.Clone(good), 'x'))), "after the end"},
		"small frames":               {sealed(frame(good[:1000]), frame(good[1000:])), "not as imagepin writes it"},
		"a truncated frame":          {frame(good)[:1000], "truncated"},
		"an archive without its end": {sealed(frame(good[:len(good)-512])), "truncated"},
		"a frame with a window":      {sealed(streamed.Bytes()), "zstd -d"},
		"a frame with a dictionary":  {sealed(dictionary), "zstd -d"},
		"a huge frame":               {sealed(frame(make([]byte, 64<<20))), "not as imagepin writes it"},
		"a zip bomb":                 {bomb(), "for each compressed byte"},
	} {
		t.Run(name, func(t *testing.T) { refused(t, c.data, c.text) })
	}
}

// smallest writes a bundle with one image.
func smallest(t *testing.T, name string) (path string, content []byte) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	m := newMemory()
	d := m.manifest(t, "linux/amd64", random(9, 300))
	d.Platform = nil
	write(t, path, bundle.Options{Lock: locked(t, map[string]ocispec.Descriptor{"registry.example/app:v1": d})}, m)
	return path, readFile(t, path)
}

func TestEachTruncationIsRefused(t *testing.T) {
	for _, name := range names {
		path, content := smallest(t, name)
		for size := int64(len(content)) - 1; size >= 0; size-- {
			if err := os.Truncate(path, size); err != nil {
				t.Fatal(err)
			}
			if err := verify(t, path); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Fatalf("%s with %d bytes: %v", name, size, err)
			}
		}
	}
}

func TestEachFlippedBitIsRefused(t *testing.T) {
	for _, name := range names {
		path, content := smallest(t, name)
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for at, was := range content {
			bit := at % 8
			if _, err := file.WriteAt([]byte{was ^ 1<<bit}, int64(at)); err != nil {
				t.Fatal(err)
			}
			if err := verify(t, path); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Fatalf("%s with bit %d of byte %d flipped: %v", name, bit, at, err)
			}
			if _, err := file.WriteAt([]byte{was}, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(verify(t, path), file.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
