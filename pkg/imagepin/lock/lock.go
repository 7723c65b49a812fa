package lock

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"

	"github.com/imagepin/imagepin/internal/yamldoc"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

const (
	// APIVersion and Kind are those of Carvel's ImagesLock.
	APIVersion = "imgpkg.carvel.dev/v1alpha1"
	Kind       = "ImagesLock"
	// MediaType is the media type of a lock.
	MediaType = "application/vnd.carvel.imgpkg.imageslock.v1alpha1+yaml"

	// IDAnnotation has the reference as it was written in the manifest. kbld replaces this text by the digest.
	IDAnnotation = "kbld.carvel.dev/id"
	// PlatformsAnnotation has the digest of the manifest of each platform, as a JSON object.
	PlatformsAnnotation = "io.imagepin.platforms"

	// MaxSize is the maximum size of a lock in bytes, and MaxImages the maximum number of images in it.
	MaxSize   = 12 << 20
	MaxImages = 20000
)

// Lock is a set of images by digest. Its images are sorted by [Image.ID], then by reference, and no two are equal.
type Lock struct{ Images []Image }

// Image is one image of a lock.
type Image struct {
	// ID is the reference as it was written in a manifest, for example "nginx:1.29". It is empty if the lock does not have it.
	ID string
	// Ref is the image by digest, normalized. Its repository can differ from that of ID, after imgpkg has copied the image.
	Ref reference.Canonical
	// Platforms has the digest of the manifest of each platform, as in platforms.FormatAll. It is nil if the lock does not
	// have it.
	Platforms map[string]digest.Digest
	// Annotations are all other annotations.
	Annotations map[string]string
}

// Tag returns the normalized reference that the image was locked for, if it has a tag and no digest.
func (i Image) Tag() (reference.NamedTagged, bool) {
	if i.ID == "" {
		return nil, false
	}
	ref, err := imagepin.ParseReference(i.ID)
	if err != nil {
		return nil, false
	}
	tagged, ok := ref.(reference.NamedTagged)
	return tagged, ok
}

func compareImages(a, b Image) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Ref.String(), b.Ref.String()))
}

// New returns a lock of images, which it sorts. It fails with [imagepin.InvalidLock] (ErrInvalidArgument) if a reference
// has two digests, or there are more than MaxImages.
func New(images []Image) (*Lock, error) {
	if len(images) > MaxImages {
		return nil, invalid(nil, "%d images, a lock has at most %d", len(images), MaxImages)
	}
	l := &Lock{Images: slices.SortedFunc(slices.Values(images), compareImages)}
	l.Images = slices.CompactFunc(l.Images, func(a, b Image) bool { return compareImages(a, b) == 0 })
	digests := make(map[string]digest.Digest)
	for _, i := range l.Images {
		tag, ok := i.Tag()
		if !ok {
			continue
		}
		if d, known := digests[tag.String()]; known && d != i.Ref.Digest() {
			return nil, invalid(nil, "%s has two digests: %s and %s", tag, d, i.Ref.Digest())
		}
		digests[tag.String()] = i.Ref.Digest()
	}
	return l, nil
}

// file is the form of a lock in YAML or JSON.
type file struct {
	APIVersion string      `json:"apiVersion"`
	Kind       string      `json:"kind"`
	Images     []fileImage `json:"images"`
}

type fileImage struct {
	Image       string            `json:"image"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Parse reads a lock in YAML or JSON. It fails with [imagepin.InvalidLock] (ErrInvalidArgument) if it is none, has an unknown
// field, an image without a digest, a reference with two digests, or no image, or if there is another YAML document after it.
func Parse(data []byte) (*Lock, error) {
	if len(data) > MaxSize {
		return nil, invalid(nil, "%d bytes, a lock has at most %d", len(data), MaxSize)
	}
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return nil, invalid(err, "not a lock")
	}
	if err := yamldoc.Single(data); err != nil {
		e := invalid(err, "a lock is one document")
		e.Hint = "Write one lock for all manifests: imagepin lock -f FILE -f FILE. A node also applies several files in locks_directory together."
		return nil, e
	}
	if f.APIVersion != APIVersion || f.Kind != Kind {
		return nil, invalid(nil, "apiVersion %q and kind %q, want %s and %s", f.APIVersion, f.Kind, APIVersion, Kind)
	}
	if len(f.Images) == 0 {
		return nil, invalid(nil, "it has no images")
	}
	if len(f.Images) > MaxImages {
		return nil, invalid(nil, "%d images, a lock has at most %d", len(f.Images), MaxImages)
	}
	images := make([]Image, 0, len(f.Images))
	for n, i := range f.Images {
		image, err := i.parse()
		if err != nil {
			return nil, invalid(err, "images[%d]", n)
		}
		images = append(images, image)
	}
	return New(images)
}

func (f fileImage) parse() (Image, error) {
	ref, err := imagepin.ParseReference(f.Image)
	if err != nil {
		return Image{}, err
	}
	canonical, ok := ref.(reference.Canonical)
	if !ok {
		return Image{}, fmt.Errorf("image %q has no digest", f.Image)
	}
	i := Image{ID: f.Annotations[IDAnnotation], Ref: canonical, Annotations: maps.Clone(f.Annotations)}
	if i.ID != "" {
		if _, err := imagepin.ParseReference(i.ID); err != nil {
			return Image{}, fmt.Errorf("annotation %s: %w", IDAnnotation, err)
		}
	}
	if text, ok := f.Annotations[PlatformsAnnotation]; ok {
		if err := json.Unmarshal([]byte(text), &i.Platforms); err != nil {
			return Image{}, fmt.Errorf("annotation %s: %w", PlatformsAnnotation, err)
		}
		for platform, d := range i.Platforms {
			if err := d.Validate(); err != nil {
				return Image{}, fmt.Errorf("annotation %s: %q: %w", PlatformsAnnotation, platform, err)
			}
		}
	}
	delete(i.Annotations, IDAnnotation)
	delete(i.Annotations, PlatformsAnnotation)
	if len(i.Annotations) == 0 {
		i.Annotations = nil
	}
	return i, nil
}

// Marshal returns the lock in YAML. Equal locks have equal bytes.
func (l *Lock) Marshal() ([]byte, error) {
	f := file{APIVersion: APIVersion, Kind: Kind, Images: make([]fileImage, 0, len(l.Images))}
	for _, i := range l.Images {
		annotations := make(map[string]string, len(i.Annotations)+2)
		maps.Copy(annotations, i.Annotations)
		if i.ID != "" {
			annotations[IDAnnotation] = i.ID
		}
		if len(i.Platforms) > 0 {
			text, err := json.Marshal(i.Platforms)
			if err != nil {
				return nil, err
			}
			annotations[PlatformsAnnotation] = string(text)
		}
		f.Images = append(f.Images, fileImage{Image: i.Ref.String(), Annotations: annotations})
	}
	return yaml.Marshal(f)
}

// Digest returns the digest of the lock in YAML. It identifies the lock.
func (l *Lock) Digest() (digest.Digest, error) {
	text, err := l.Marshal()
	if err != nil {
		return "", err
	}
	return digest.FromBytes(text), nil
}

func invalid(err error, format string, args ...any) *imagepin.Error {
	return &imagepin.Error{
		Reason: imagepin.InvalidLock, Class: errdefs.ErrInvalidArgument, Message: fmt.Sprintf(format, args...), Err: err,
		Hint: "Write it with: imagepin lock -f FILE",
	}
}
