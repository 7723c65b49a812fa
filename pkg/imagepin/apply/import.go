package apply

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/docker/go-units"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
)

// ingestPrefix begins the names of what is written to the content store.
const ingestPrefix = "imagepin-apply-"

// importBundle writes what a plan needs from a bundle to the content store. The lease in ctx holds it, and what the content
// store has already.
func (a *Applier) importBundle(ctx context.Context, b Bundle, p *plan, report func(Progress)) error {
	var done, total int64
	for n := range p.layers.Len() {
		if b.Has(p.layers.Digest(n)) {
			total += *p.layers.At(n)
		}
	}
	report(Progress{Phase: Importing, Total: total})
	for _, all := range []*sizes{&p.metadata, &p.layers} {
		for d := range all.All() {
			if b.Has(d) {
				continue
			}
			if err := a.hold(ctx, d); err != nil {
				return err
			}
		}
	}
	want := func(d ocispec.Descriptor) bool {
		return p.metadata.Has(d.Digest) || p.layers.Has(d.Digest)
	}
	return b.ReadBlobs(ctx, want, func(d ocispec.Descriptor, r io.Reader) error {
		if !p.layers.Has(d.Digest) {
			return a.write(ctx, d, r)
		}
		return a.write(ctx, d, &counting{Reader: r, read: func(n int64) {
			done += n
			report(Progress{Phase: Importing, Done: done, Total: total})
		}})
	})
}

// write writes a blob to the content store, which verifies its digest. It fails with [imagepin.NotEnoughSpace]
// (ErrResourceExhausted) if the disk is full.
func (a *Applier) write(ctx context.Context, d ocispec.Descriptor, r io.Reader) error {
	err := content.WriteBlob(ctx, a.config.Content, ingestPrefix+d.Digest.String(), r, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
	switch {
	case err != nil && errno.NoSpace(err):
		return noSpace(err)
	case err != nil:
		return fmt.Errorf("import %s: %w", d.Digest, err)
	}
	return nil
}

// counting reports what is read.
type counting struct {
	io.Reader
	read    func(n int64)
	pending int64
}

// reportEvery is how many bytes are read between two reports.
const reportEvery = 4 << 20

// Read implements io.Reader.
func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.pending += int64(n); c.pending >= reportEvery || err != nil {
		c.read(c.pending)
		c.pending = 0
	}
	return n, err
}

// checkSpace fails with [imagepin.NotEnoughSpace] (ErrResourceExhausted) if the disk has no space for what a plan imports.
func (a *Applier) checkSpace(ctx context.Context, p *plan) error {
	dir := a.config.Settings().ContentDir
	if dir == "" {
		return nil
	}
	free, err := freeBytes(dir)
	if err != nil {
		return nil // the import fails if there is no space
	}
	var needed int64
	for n := range p.layers.Len() {
		d := p.layers.Digest(n)
		switch _, err := a.config.Content.Info(ctx, d); {
		case errdefs.IsNotFound(err):
			needed += *p.layers.At(n)
		case err != nil:
			return fmt.Errorf("layer %s: %w", d, err)
		}
	}
	if needed <= free {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.NotEnoughSpace, Class: errdefs.ErrResourceExhausted,
		Message: fmt.Sprintf("the bundle needs %s for layers and as much again or more for their snapshots, and %s has %s", units.BytesSize(float64(needed)), dir, units.BytesSize(float64(free))),
		Hint:    "Remove images that nothing uses (imagepin prune), or the previous lock (imagepin lock rm --previous).",
	}
}

func noSpace(err error) error {
	return &imagepin.Error{
		Reason: imagepin.NotEnoughSpace, Class: errdefs.ErrResourceExhausted, Err: err, Message: "the lock is not applied, and what was imported for it is removed",
		Hint: "Remove images that nothing uses (imagepin prune), or the previous lock (imagepin lock rm --previous).",
	}
}

// undo releases what a failed apply retains. If the disk is full, it also removes the images that the apply has made ready. It
// returns the error of the apply.
func (a *Applier) undo(ctx context.Context, p *plan, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	err := a.config.State.Keep(ctx, nil)
	if !errno.NoSpace(cause) {
		return errors.Join(cause, err)
	}
	var known *imagepin.Error
	if !errors.As(cause, &known) || known.Reason != imagepin.NotEnoughSpace {
		cause = noSpace(cause)
	}
	if err == nil {
		err = a.config.Remover.RemoveKeys(ctx, p.made)
	}
	return errors.Join(cause, err)
}
