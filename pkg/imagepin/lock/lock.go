package lock

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

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
	// platformsAnnotation has the digest of the manifest of each platform, as a JSON object.
	platformsAnnotation = "io.imagepin.platforms"

	// MaxSize is the maximum size of a lock in bytes, MaxImages the maximum number of images in it, and MaxAnnotations that of the
	// annotations of all images, beside those that imagepin writes.
	MaxSize        = 12 << 20
	MaxImages      = 20000
	MaxAnnotations = 4 * MaxImages
	// MaxImageSize is the maximum size of one image of a lock in bytes of YAML or JSON.
	MaxImageSize = 64 << 10
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

// Name returns the reference that the image was locked for: its tag, or the image by digest.
func (i Image) Name() reference.Named {
	if tag, ok := i.Tag(); ok {
		return tag
	}
	return i.Ref
}

func compareImages(a, b Image) int {
	return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Ref.String(), b.Ref.String()))
}

// New returns a lock of images, which it sorts. It fails with [imagepin.InvalidLock] (ErrInvalidArgument) if a reference
// has two digests, an image has more than MaxImageSize, or there are more than MaxImages or MaxAnnotations.
func New(images []Image) (*Lock, error) {
	if len(images) > MaxImages {
		return nil, invalid(nil, "%d images, a lock has at most %d", len(images), MaxImages)
	}
	l := &Lock{Images: slices.SortedFunc(slices.Values(images), compareImages)}
	l.Images = slices.CompactFunc(l.Images, func(a, b Image) bool { return compareImages(a, b) == 0 })
	digests := make(map[string]digest.Digest)
	annotations := 0
	for _, i := range l.Images {
		if annotations += len(i.Annotations); annotations > MaxAnnotations {
			return nil, tooManyAnnotations()
		}
		if err := i.checkSize(); err != nil {
			return nil, err
		}
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

func tooManyAnnotations() error {
	return invalid(nil, "more than %d annotations of all images", MaxAnnotations)
}

func invalid(err error, format string, args ...any) *imagepin.Error {
	return &imagepin.Error{
		Reason: imagepin.InvalidLock, Class: errdefs.ErrInvalidArgument, Message: fmt.Sprintf(format, args...), Err: err,
		Hint: "Write it with: imagepin lock -f FILE",
	}
}
