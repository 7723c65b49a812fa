package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	_ "crypto/sha256" // for digests
	_ "crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
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

// Limits.
const (
	maxIndexJSON     = 16 << 20 // bytes of index.json
	maxMetadataBlob  = 8 << 20  // bytes of an index, a manifest or a configuration
	maxMetadata      = 1 << 30  // bytes of all of them
	maxDepth         = 4        // of an index in an index, the root has depth 1
	maxBlobs         = 1 << 18  // number of entries
	maxListed        = 1 << 19  // descriptors in all indexes and manifests
	maxAbsent        = 1 << 17  // of them, of absent manifests
	maxText          = 255      // bytes of a media type, or of a text of a platform
	maxFeatures      = 16       // of a platform
	minDigest        = 64       // bytes of a digest in a text
	maxPlatforms     = 1000     // of a description
	minBlob          = 32       // bytes of the file for each blob: digests do not compress
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

// check returns what is wrong with a description.
func (d *Description) check() error {
	if err := checkDigest(d.Lock); err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	for _, p := range d.Platforms {
		platform, err := platforms.Parse(p)
		if err != nil {
			return fmt.Errorf("platform: %w", err)
		}
		if want := platforms.FormatAll(platforms.Normalize(platform)); p != want {
			return fmt.Errorf("platform %q, want %q", p, want)
		}
	}
	if !ascending(d.Platforms) || !ascending(d.Omitted) || !ascending(d.Absent) {
		return fmt.Errorf("platforms or digests are not sorted, or twice")
	}
	if d.Since != "" {
		if err := checkDigest(d.Since); err != nil {
			return fmt.Errorf("since: %w", err)
		}
	}
	for _, of := range slices.Concat(d.Omitted, d.Absent) {
		if err := checkDigest(of); err != nil {
			return err
		}
	}
	switch {
	case len(d.Omitted) > 0 && d.Since == "":
		return fmt.Errorf("it omits layers, but there is no earlier lock")
	case len(d.Absent) > 0 && len(d.Platforms) == 0:
		return fmt.Errorf("manifests are absent, but it is for all platforms")
	}
	return nil
}

func ascending[T cmp.Ordered](s []T) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] >= s[i] {
			return false
		}
	}
	return true
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

// imageName returns the name of an image for other tools: its tag, or the reference by digest.
func imageName(i lock.Image) string {
	if tag, ok := i.Tag(); ok {
		return tag.String()
	}
	return i.Ref.String()
}

// manifestDescriptor returns a descriptor of a root without what is not needed.
func manifestDescriptor(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// indexJSON returns index.json: a descriptor for each name, then the bundle's own manifest.
func indexJSON(l *lock.Lock, roots map[digest.Digest]ocispec.Descriptor, own ocispec.Descriptor) ([]byte, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	named := make(map[string]bool)
	for _, i := range l.Images {
		name := imageName(i)
		if named[name] {
			continue
		}
		named[name] = true
		d := manifestDescriptor(roots[i.Ref.Digest()])
		// ctr reads the first, the other tools read the second.
		d.Annotations = map[string]string{images.AnnotationImageName: name, ocispec.AnnotationRefName: name}
		index.Manifests = append(index.Manifests, d)
	}
	own = manifestDescriptor(own)
	own.ArtifactType = ArtifactType
	index.Manifests = append(index.Manifests, own)
	return json.Marshal(index)
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
