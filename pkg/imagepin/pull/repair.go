package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// repair is [Puller.Repair] with the meter of the pull, which may be nil.
func (m *Maker) repair(ctx context.Context, e imagepin.Entry, meter *meter) (Outcome, error) {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return Failed, err
	}
	rt, err := m.runtimeOf(e.Target)
	if err != nil {
		return Failed, err
	}
	_, outcome, err := m.Make(ctx, Job{Verdict: decide.Verdict{Ref: ref, Root: e.Root}, Runtime: rt, Record: Restore(e), meter: meter})
	if errors.Is(err, errUnneeded) {
		return Unneeded, nil
	}
	return outcome, err
}

// runtimeOf returns the runtime of a target. It fails with ErrNotFound if no runtime handler has the target.
func (m *Maker) runtimeOf(t runtimeplatform.Target) (runtimeplatform.Runtime, error) {
	rt, ok := m.config.Runtimes().ForTarget(t)
	if !ok {
		return rt, fmt.Errorf("no runtime handler has target %s: %w", t, errdefs.ErrNotFound)
	}
	return rt, nil
}

// WithLease runs fn under a lease that holds what entries need. If a part of that is gone, it does not run fn and
// returns nil.
func (m *Maker) WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	return m.withLease(ctx, func(ctx context.Context) error {
		err := m.config.Images.AddToLease(ctx, entries...)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(ctx)
	})
}

// Unpack unpacks an image whose layers are on the node for e's target, makes it durable, and runs record with e and its mark
// while a lease holds the result.
// It sends no request to a registry and fails with ErrNotFound if a layer is missing. The image's configuration keeps
// the snapshot.
func (m *Maker) Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context, imagepin.Entry) error) error {
	rt, err := m.runtimeOf(e.Target)
	if err != nil {
		return err
	}
	return m.withLease(ctx, func(ctx context.Context) error {
		manifest := ocispec.Descriptor{Digest: e.Manifest, MediaType: e.RecordTarget.MediaType, Size: e.RecordTarget.Size}
		if e.Manifest != e.RecordTarget.Digest {
			chosen, err := ChooseLocal(ctx, m.config.Content, e.RecordTarget, rt)
			if err != nil {
				return err
			}
			manifest = chosen
		}
		if err := m.config.Clean(ctx); err != nil {
			return err
		}
		began := time.Now()
		if err := m.unpacker.unpackLocal(ctx, e, manifest, rt); err != nil {
			return err
		}
		if err := m.makeDurable(ctx, &e, began); err != nil {
			return err
		}
		if err := record(ctx, e); err != nil {
			return err
		}
		return m.config.Retained.SyncImage(ctx, e)
	})
}

// RepairBlob verifies one blob of an image on the node. If its file is damaged, it fetches the blob again, by digest
// and with the node's own credentials. It fails with ContentDamaged (ErrDataLoss) if the registry does not have the
// blob.
func (m *Maker) RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return err
	}
	return m.withLease(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		info, err := m.config.Content.Info(ctx, d)
		if err != nil {
			return err
		}
		desc := ocispec.Descriptor{MediaType: mediaTypeOf(info), Digest: d, Size: info.Size}
		src := m.unpacker.fetcher.sourceOf(ctx, Job{Verdict: decide.Verdict{Ref: ref}, Record: Restore(e)}, cancel)
		if _, err = m.unpacker.fetcher.damage.verify(ctx, src, desc); err == nil {
			return nil
		}
		err = complete(withCause(ctx, err), imagepin.CannotPullImage, e.Ref, e.Target)
		var typed *imagepin.Error
		if e.Target == (runtimeplatform.Target{}) && errors.As(err, &typed) {
			typed.Target = "" // content that a pin retains has no target
		}
		return err
	})
}

// mediaTypeOf returns a media type that selects the right registry endpoint for a blob: a blob that references others
// is a manifest or an index.
func mediaTypeOf(info content.Info) string {
	for label := range info.Labels {
		if strings.HasPrefix(label, upstream.ContentRef) {
			return ocispec.MediaTypeImageManifest
		}
	}
	return ocispec.MediaTypeImageLayer
}
