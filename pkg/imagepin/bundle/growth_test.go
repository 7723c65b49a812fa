package bundle_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/heaptest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
)

// compress returns an archive as the writer compresses it.
func compress(t testing.TB, archive []byte) []byte {
	t.Helper()
	e, err := zstd.NewWriter(nil, zstd.WithSingleSegment(true), zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for part := range slices.Chunk(archive, bundle.FrameSize) {
		all = e.EncodeAll(part, all)
	}
	sum := crc32.Checksum(all, crc32.MakeTable(crc32.Castagnoli))
	return append(append(all, 0x5b, 0x2a, 0x4d, 0x18, 4, 0, 0, 0), byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

// hostile builds a bundle that names more than it has.
type hostile struct {
	random *rand.ChaCha8
	blobs  [][]byte
}

func newHostile() *hostile { return &hostile{random: rand.NewChaCha8([32]byte{7})} }

// digest returns the digest of a blob that does not exist.
func (h *hostile) digest() digest.Digest {
	var b [32]byte
	_, _ = h.random.Read(b[:])
	return digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(b[:]))
}

// list returns descriptors of blobs that do not exist, in JSON.
func (h *hostile) list(number int, with func(n int) string) []byte {
	var b bytes.Buffer
	for n := range number {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"digest":%q,"size":1,%s}`, h.digest(), with(n))
	}
	return b.Bytes()
}

func (h *hostile) add(mediaType string, data []byte) ocispec.Descriptor {
	h.blobs = append(h.blobs, data)
	return descriptor(mediaType, data)
}

var emptyConfig = descriptor(ocispec.MediaTypeImageConfig, []byte("{}"))

// manifestOf returns a manifest with layers in JSON.
func manifestOf(config ocispec.Descriptor, layers []byte, fields string) []byte {
	return fmt.Appendf(nil, `{"schemaVersion":2%s,"config":{"mediaType":%q,"digest":%q,"size":%d},"layers":[%s]}`, fields, config.MediaType, config.Digest, config.Size, layers)
}

func indexOf(t testing.TB, children ...ocispec.Descriptor) []byte {
	return mustJSON(t, ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: children})
}

// manifests returns an archive of an image with manifests and the configuration that they share.
func (h *hostile) manifests(t testing.TB, manifests ...[]byte) []byte {
	var children []ocispec.Descriptor
	for _, m := range manifests {
		children = append(children, descriptor(ocispec.MediaTypeImageManifest, m))
	}
	index := indexOf(t, children...)
	blobs := append(append([][]byte{index}, manifests...), []byte("{}"))
	return pack(t, single(t, descriptor(ocispec.MediaTypeImageIndex, index), blobs...).parts(t))
}

const layerType = `"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip"`

func always(text string) func(int) string { return func(int) string { return text } }

// TestMemoryOfHostileBundles checks the memory for bundles of at most 8 MiB that name as much as they can: the heap does not grow more than by
// the limits, whether the bundle is refused or not.
func TestMemoryOfHostileBundles(t *testing.T) {
	const each = 8000
	layers := func(t *testing.T, number int) []byte {
		h := newHostile()
		var manifests [][]byte
		for ; number > 0; number -= each {
			manifests = append(manifests, manifestOf(emptyConfig, h.list(min(number, each), always(layerType)), ""))
		}
		return compress(t, h.manifests(t, manifests...))
	}
	one := func(t *testing.T, layers []byte, fields string) []byte {
		return compress(t, newHostile().manifests(t, manifestOf(emptyConfig, layers, fields)))
	}
	absent := func(t *testing.T, number int, platform func(int) string) []byte {
		h := newHostile()
		var blobs [][]byte
		var digests []digest.Digest
		for ; number > 0; number -= each {
			list := h.list(min(number, each), func(n int) string {
				return fmt.Sprintf(`"mediaType":%q,"platform":{%s}`, ocispec.MediaTypeImageManifest, platform(number+n))
			})
			blobs = append(blobs, fmt.Appendf(nil, `{"manifests":[%s]}`, list))
			for text := range strings.SplitSeq(string(list), `"digest":"`) {
				if strings.HasPrefix(text, "sha256:") {
					digests = append(digests, digest.Digest(text[:71]))
				}
			}
		}
		var children []ocispec.Descriptor
		for _, b := range blobs {
			children = append(children, descriptor(ocispec.MediaTypeImageIndex, b))
		}
		index := indexOf(t, children...)
		l := single(t, descriptor(ocispec.MediaTypeImageIndex, index), append([][]byte{index}, blobs...)...)
		slices.Sort(digests)
		l.description.Platforms, l.description.Absent = []string{"linux/amd64"}, digests
		return compress(t, pack(t, l.parts(t)))
	}
	for name, c := range map[string]struct {
		file func(t *testing.T) []byte
		want string // of the error of Open; empty if it opens
		kept int64  // MiB, beside 4 MiB of metadata
	}{
		"many layers": {func(t *testing.T) []byte { return layers(t, 120_000) }, "", 16},
		"layers that the file cannot have": {func(t *testing.T) []byte {
			var list bytes.Buffer
			for n := range 8000 {
				fmt.Fprintf(&list, `,{"digest":"sha256:%064x","size":1}`, n)
			}
			return one(t, list.Bytes()[1:], "")
		}, "which a file of", 1},
		"too many in a manifest": {func(t *testing.T) []byte { return one(t, newHostile().list(9_000, always(layerType)), "") }, "at most 8192", 1},
		"empty descriptors":      {func(t *testing.T) []byte { return one(t, []byte(strings.Repeat("{},", 2<<20)+"{}"), "") }, "at most 8192", 1},
		"media types": {func(t *testing.T) []byte {
			return one(t, newHostile().list(8000, func(n int) string { return fmt.Sprintf(`"mediaType":"%0200d"`, n) }), "")
		}, "media types", 1},
		"annotations": {func(t *testing.T) []byte {
			var text strings.Builder
			for n := range 80_000 {
				fmt.Fprintf(&text, `,"%x":""`, n)
			}
			return one(t, nil, `,"annotations":{`+text.String()[1:]+`}`)
		}, "texts", 1},
		"a large annotation": {func(t *testing.T) []byte {
			return one(t, nil, `,"annotations":{"a":"`+strings.Repeat("x", 8<<20-500)+`"}`)
		}, "", 0},
		"other fields": {func(t *testing.T) []byte { return one(t, nil, `,"x":[`+strings.Repeat("[],", 2<<20)+`0]`) }, "", 8},
		"absent manifests": {func(t *testing.T) []byte {
			return absent(t, 60_000, always(`"os":"linux","architecture":"arm64"`))
		}, "", 12},
		"platforms": {func(t *testing.T) []byte {
			return absent(t, 8_000, func(n int) string { return fmt.Sprintf(`"os":"linux","architecture":"%0200d"`, n) })
		}, "platforms", 1},
		"many manifests": {func(t *testing.T) []byte {
			h := newHostile()
			var children []ocispec.Descriptor
			var configs [][]byte
			for n := range 4000 {
				config := fmt.Appendf(nil, `{"author":"%d"}`, n)
				configs = append(configs, config)
				children = append(children, h.add(ocispec.MediaTypeImageManifest, manifestOf(descriptor(ocispec.MediaTypeImageConfig, config), nil, "")))
			}
			index := indexOf(t, children...)
			return compress(t, pack(t, single(t, descriptor(ocispec.MediaTypeImageIndex, index), slices.Concat([][]byte{index}, h.blobs, configs)...).parts(t)))
		}, "", 8},
		"omitted layers": {func(t *testing.T) []byte {
			h := newHostile()
			var omitted []digest.Digest
			for range 100_000 {
				omitted = append(omitted, h.digest())
			}
			slices.Sort(omitted)
			image, blobs := newImage(t)
			l := single(t, image, blobs...)
			l.description.Since, l.description.Omitted = digest.FromString("old"), omitted
			return compress(t, pack(t, l.parts(t)))
		}, "no image has this layer", 1},
		"platforms of the description": {func(t *testing.T) []byte {
			image, blobs := newImage(t)
			l := single(t, image, blobs...)
			l.description.Platforms = make([]string, 2<<20)
			return compress(t, pack(t, l.parts(t)))
		}, "more than 1000", 1},
		"names in index.json": {func(t *testing.T) []byte {
			image, blobs := newImage(t)
			l := single(t, image, blobs...)
			more := make([]ocispec.Descriptor, 100_000)
			h := newHostile()
			for n := range more {
				more[n] = ocispec.Descriptor{MediaType: "a", Digest: h.digest(), Size: 1}
			}
			l.index.Manifests = slices.Insert(l.index.Manifests, 0, more...)
			return compress(t, pack(t, l.parts(t)))
		}, "the lock names 1", 1},
		"a lock": {func(t *testing.T) []byte {
			image, blobs := newImage(t)
			l := single(t, image, blobs...)
			l.lock = []byte("images: [" + strings.Repeat("a,", 5<<20) + "]\n")
			return compress(t, pack(t, l.parts(t)))
		}, "InvalidLock", 1},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "bundle")
			data := c.file(t)
			size := len(data)
			if size > 8<<20 {
				t.Fatalf("the bundle has %d bytes", size)
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			data = nil
			b, grown := heaptest.Of(t, func() *bundle.Bundle {
				b, err := bundle.Open(path)
				var known *imagepin.Error
				switch {
				case c.want == "" && err != nil:
					t.Errorf("got %v", err)
				case c.want != "" && (!errors.As(err, &known) || known.Reason != imagepin.InvalidBundle || !strings.Contains(err.Error(), c.want)):
					t.Errorf("got %v, want InvalidBundle with %q", err, c.want)
				}
				return b
			})
			t.Logf("%d KiB of a file: %d KiB are kept, at most %d KiB", size>>10, grown.Kept>>10, grown.Peak>>10)
			if kept := c.kept<<20 + 4<<20; grown.Kept > kept || grown.Peak > 32<<20 {
				t.Errorf("%d KiB of a file: %d KiB are kept, at most %d KiB", size>>10, grown.Kept>>10, grown.Peak>>10)
			}
			if b != nil {
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
