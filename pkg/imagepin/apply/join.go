package apply

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// joined are several bundles that supply content for one lock. The last one that has a blob supplies it.
type joined struct{ all []*bundle.Bundle }

// joinBundles returns the bundles of a lock. It returns nil if none has an image of the lock, which is then pulled. It fails
// with [imagepin.NotInBundle] (ErrNotFound) if only some images are in the bundles.
func joinBundles(l *lock.Lock, all []*bundle.Bundle) (Bundle, error) {
	j := joined{all}
	var missing *lock.Image
	found := false
	for n, i := range l.Images {
		if _, ok := j.Root(i.Ref.Digest()); ok {
			found = true
		} else if missing == nil {
			missing = &l.Images[n]
		}
	}
	if !found {
		return nil, nil
	}
	if missing != nil {
		return nil, absentImage(*missing)
	}
	return j, nil
}

// Verify implements Bundle.
func (j joined) Verify(ctx context.Context, progress func(done, total int64)) error {
	var before, total int64
	for _, b := range j.all {
		total += b.Size()
	}
	for _, b := range j.all {
		if err := b.Verify(ctx, func(done, _ int64) { progress(before+done, total) }); err != nil {
			return err
		}
		before += b.Size()
	}
	return nil
}

// last returns the last bundle with something.
func (j joined) last(has func(*bundle.Bundle) bool) (*bundle.Bundle, bool) {
	for n := len(j.all) - 1; n >= 0; n-- {
		if has(j.all[n]) {
			return j.all[n], true
		}
	}
	return nil, false
}

// Root implements Bundle.
func (j joined) Root(d digest.Digest) (root ocispec.Descriptor, ok bool) {
	j.last(func(b *bundle.Bundle) bool { root, ok = b.Root(d); return ok })
	return root, ok
}

// Blob implements Bundle.
func (j joined) Blob(d digest.Digest) (text []byte, err error) {
	err = fmt.Errorf("no bundle has %s: %w", d, errdefs.ErrNotFound)
	j.last(func(b *bundle.Bundle) bool { text, err = b.Blob(d); return !errdefs.IsNotFound(err) })
	return text, err
}

// Has implements Bundle.
func (j joined) Has(d digest.Digest) bool {
	_, ok := j.last(func(b *bundle.Bundle) bool { return b.Has(d) })
	return ok
}

// ReadBlobs implements Bundle.
func (j joined) ReadBlobs(ctx context.Context, want func(ocispec.Descriptor) bool, each func(ocispec.Descriptor, io.Reader) error) error {
	for _, b := range j.all {
		own := func(d ocispec.Descriptor) bool {
			last, ok := j.last(func(o *bundle.Bundle) bool { return o.Has(d.Digest) })
			return ok && last == b && want(d)
		}
		if err := b.ReadBlobs(ctx, own, each); err != nil {
			return err
		}
	}
	return nil
}
