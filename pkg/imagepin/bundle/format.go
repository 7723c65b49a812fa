package bundle

import (
	"archive/tar"
	"bytes"
	_ "crypto/sha256" // for digests
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const (
	// ArtifactType is the artifact type of the bundle's own manifest, which index.json lists after the images.
	ArtifactType = "application/vnd.imagepin.bundle.v1+json"
	// DescriptionMediaType is the media type of a [Description].
	DescriptionMediaType = "application/vnd.imagepin.bundle.config.v1+json"

	// FrameSize is the size in bytes of the part of the archive that a zstd frame has.
	FrameSize = 4 << 20
)

// Limits. What an open bundle has in memory grows with the number of its blobs only, see [Open].
const (
	maxIndexJSON     = 16 << 20 // bytes of index.json
	maxMetadataBlob  = 8 << 20  // bytes of an index, a manifest or a configuration
	maxMetadata      = 1 << 30  // bytes of all of them
	maxDepth         = 4        // of an index in an index, the root has depth 1
	maxBlobs         = 1 << 17  // number of blobs, also of layers that are omitted
	maxListed        = 1 << 18  // descriptors in all indexes and manifests
	maxListedIn      = 1 << 13  // descriptors in one of them
	maxStrings       = 1 << 17  // texts in one of them
	maxAbsent        = 1 << 16  // of the descriptors, of absent manifests
	maxText          = 255      // bytes of a media type, or of a text of a platform
	maxTexts         = 1 << 18  // bytes of all media types, and of all platforms of absent manifests
	maxTextsNumber   = 1 << 13  // number of them
	maxFeatures      = 16       // of a platform
	maxPlatforms     = 1000     // of a description
	minBlob          = 32       // bytes of a compressed file for each blob: digests do not compress
	maxSize          = 1 << 60  // bytes of all blobs
	expansion        = 200      // bytes of the archive for each compressed byte
	expansionMinimum = 64 << 20 // bytes of the archive beside that
)

// Description is the configuration of a bundle's own manifest.
type Description struct {
	// Lock is the digest of the lock in YAML, which is in the bundle.
	Lock digest.Digest `json:"lock"`
	// Platforms are the platforms that the bundle was written for, as in platforms.FormatAll. It is nil for all platforms.
	Platforms []string `json:"platforms,omitempty"`
	// Since is the digest of the earlier lock that the node needs to have. It is empty if the bundle needs none.
	Since digest.Digest `json:"since,omitempty"`
	// Omitted are the layers of images of this lock that the images of the earlier lock have too, and the bundle does not. It
	// is sorted.
	Omitted []digest.Digest `json:"omitted,omitempty"`
	// Absent are the manifests that indexes list for other platforms, and the bundle does not have. It is sorted.
	Absent []digest.Digest `json:"absent,omitempty"`
}

// checkDigest returns what is wrong with a digest, which may be of SHA-256 or SHA-512.
func checkDigest(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %.80q: %w", string(d), err)
	}
	if a := d.Algorithm(); a != digest.SHA256 && a != digest.SHA512 {
		return fmt.Errorf("digest %.80q: want sha256 or sha512", string(d))
	}
	return nil
}

// checkDescriptor returns what is wrong with a descriptor.
func checkDescriptor(d ocispec.Descriptor) error {
	if err := checkDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 || d.Size > maxSize {
		return fmt.Errorf("%s has the size %d", d.Digest, d.Size)
	}
	return nil
}

// blobName returns the name of the entry of a blob.
func blobName(d digest.Digest) string {
	return ocispec.ImageBlobsDir + "/" + d.Algorithm().String() + "/" + d.Encoded()
}

var layoutFile = []byte(`{"imageLayoutVersion":"` + ocispec.ImageLayoutVersion + `"}`)

const tarBlock = 512

// header returns the tar header of an entry. It is one block if name and size fit.
func header(name string, size int64) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o644}); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// padding returns the number of bytes between the content of an entry and the next header.
func padding(size int64) int64 { return -size & (tarBlock - 1) }

// trailer is the end of an archive.
var trailer = make([]byte, 2*tarBlock)

// distinct returns the first image of each digest in a lock.
func distinct(l *lock.Lock) []lock.Image {
	known := make(map[digest.Digest]bool)
	var firsts []lock.Image
	for _, i := range l.Images {
		if d := i.Ref.Digest(); !known[d] {
			known[d] = true
			firsts = append(firsts, i)
		}
	}
	return firsts
}

// manifestDescriptor returns a descriptor of a root without what is not needed.
func manifestDescriptor(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// writeIndexJSON writes index.json: a descriptor for each name, then the bundle's own manifest.
func writeIndexJSON(w io.Writer, l *lock.Lock, rootOf func(digest.Digest) ocispec.Descriptor, own ocispec.Descriptor) error {
	const end = "]}"
	empty, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{},
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(bytes.TrimSuffix(empty, []byte(end))); err != nil {
		return err
	}
	named := make(map[string]bool)
	for _, i := range l.Images {
		name := i.Name().String()
		if named[name] {
			continue
		}
		named[name] = true
		d := manifestDescriptor(rootOf(i.Ref.Digest()))
		// ctr reads the first, the other tools read the second.
		d.Annotations = map[string]string{images.AnnotationImageName: name, ocispec.AnnotationRefName: name}
		if err := writeJSON(w, d, ","); err != nil {
			return err
		}
	}
	own = manifestDescriptor(own)
	own.ArtifactType = ArtifactType
	return writeJSON(w, own, end)
}

func writeJSON(w io.Writer, value any, after string) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(text, after...))
	return err
}

// ownManifest returns the bundle's own manifest.
func ownManifest(description, lockYAML ocispec.Descriptor) ([]byte, error) {
	return json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: ArtifactType,
		Config: description, Layers: []ocispec.Descriptor{lockYAML},
	})
}

// describe returns a descriptor of data.
func describe(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// readAll reads size bytes.
func readAll(r io.Reader, size int64) ([]byte, error) {
	data := make([]byte, size)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, err
	}
	return data, nil
}
