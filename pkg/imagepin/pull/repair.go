package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Remake makes an image ready that has lost something: from what is on the node, and else from the registry with the
// node's own credentials. It fails as [Maker.Make] does, and with ErrNotFound where no runtime handler has the target.
func (m *Maker) Repair(ctx context.Context, e imagepin.Entry) (Outcome, error) {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return Failed, err
	}
	rt, err := m.runtimeOf(e.Target)
	if err != nil {
		return Failed, err
	}
	_, outcome, err := m.Make(ctx, Job{Verdict: decide.Verdict{Ref: ref, Root: e.Root}, Runtime: rt, Force: true})
	return outcome, err
}

// runtimeOf returns the runtime of a target. It fails with ErrNotFound where no runtime handler has it any more.
func (m *Maker) runtimeOf(t runtimeplatform.Target) (runtimeplatform.Runtime, error) {
	rt, ok := m.c.Runtimes().ForTarget(t)
	if !ok {
		return rt, fmt.Errorf("no runtime handler has target %s: %w", t, errdefs.ErrNotFound)
	}
	return rt, nil
}

// Hold runs fn under a lease that holds what entries need. Where a part of that is gone fn is not run, and nothing
// fails.
func (m *Maker) WithLease(ctx context.Context, entries []imagepin.Entry, fn func(context.Context) error) error {
	return m.withLease(ctx, func(ctx context.Context) error {
		err := m.c.Images.AddToLease(ctx, entries...)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return fn(ctx)
	})
}

// Unpack unpacks an image whose layers are on the node for e's target, and runs record while a lease holds it. It fails
// with ErrNotFound where a layer is not here, and asks no registry. What it unpacks is kept by the image's configuration.
func (m *Maker) Unpack(ctx context.Context, e imagepin.Entry, record func(context.Context) error) error {
	rt, err := m.runtimeOf(e.Target)
	if err != nil {
		return err
	}
	return m.withLease(ctx, func(ctx context.Context) error {
		manifest := ocispec.Descriptor{Digest: e.Manifest, MediaType: e.RecordTarget.MediaType, Size: e.RecordTarget.Size}
		if e.Manifest != e.RecordTarget.Digest {
			chosen, err := ChooseLocal(ctx, m.c.Content, e.RecordTarget, rt)
			if err != nil {
				return err
			}
			manifest = chosen
		}
		if err := m.unpacker.unpackLocal(ctx, e, manifest, rt); err != nil {
			return err
		}
		if err := record(ctx); err != nil {
			return err
		}
		return m.c.Retained.Sync(ctx, e.Root.Digest)
	})
}

// RepairBlob verifies one blob of an image that is on the node, and fetches it again where its file is damaged, by its
// digest and with the node's own credentials. It fails with ContentDamaged (ErrDataLoss) where the registry does not have
// it.
func (m *Maker) RepairBlob(ctx context.Context, e imagepin.Entry, d digest.Digest) error {
	ref, err := reference.ParseNamed(e.Ref)
	if err != nil {
		return err
	}
	return m.withLease(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		info, err := m.c.Content.Info(ctx, d)
		if err != nil {
			return err
		}
		desc := ocispec.Descriptor{MediaType: mediaTypeOf(info), Digest: d, Size: info.Size}
		src := m.unpacker.fetcher.sourceOf(ctx, Job{Verdict: decide.Verdict{Ref: ref}, Force: true}, cancel)
		if _, err = m.unpacker.fetcher.damage.verify(ctx, src, desc); err == nil {
			return nil
		}
		err = complete(because(ctx, err), imagepin.CannotPullImage, e.Ref, e.Target)
		var typed *imagepin.Error
		if e.Target == (runtimeplatform.Target{}) && errors.As(err, &typed) {
			typed.Target = "" // what a pin retains is for none
		}
		return err
	})
}

// mediaTypeOf returns a media type by which a registry is asked for a blob in the right place: what keeps other blobs
// alive is a manifest or an index.
func mediaTypeOf(info content.Info) string {
	for label := range info.Labels {
		if strings.HasPrefix(label, "containerd.io/gc.ref.content") {
			return ocispec.MediaTypeImageManifest
		}
	}
	return ocispec.MediaTypeImageLayer
}
