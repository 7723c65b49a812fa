package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// unkeyed are the records without a key that containerd's CRI has labeled. Only Run uses it.
type unkeyed struct {
	config *Config
	ids    map[string]digest.Digest // the image IDs, by record
}

// note notes an image that has a record of its ID but no key. containerd's CRI lists it without a tag if it can
// read it. note also notes it if its configuration is gone. If the image has no record of its ID, note creates that record.
func (u *unkeyed) note(ctx context.Context, img images.Image) {
	id, err := digest.Parse(img.Name)
	isID := err == nil
	if !isID && !store.Managed(img) || u.config.Store.Accounted(img) {
		return
	}
	e, _, err := pull.DescribeLocal(ctx, u.config.Content, img.Target, u.config.Runtimes().Default())
	switch {
	case err == nil && e.ImageID.String() == img.Name:
		u.config.Store.NoteUntagged(store.Untagged{Entry: e})
	case isID:
		if _, err := u.config.Content.Info(ctx, id); errdefs.IsNotFound(err) {
			u.config.Store.NoteUnreadable(id)
		}
	case err == nil:
		u.ids[img.Name] = e.ImageID
		if err := u.config.Store.CreateIDRecord(ctx, img, e.ImageID); err != nil && ctx.Err() == nil {
			log.G(ctx).WithError(err).WithField("image", img.Name).Warn("cannot create the record of an image ID")
		}
	}
}

// sync creates the record of an image ID again if it was removed and a record without a key still needs it. The
// image may have lost its last key while another tool created that record.
func (u *unkeyed) sync(ctx context.Context, id digest.Digest) error {
	var failed error
	for _, name := range slices.Sorted(maps.Keys(u.ids)) {
		if u.ids[name] != id {
			continue
		}
		img, err := u.config.Records.Get(ctx, name)
		switch {
		case errdefs.IsNotFound(err):
			delete(u.ids, name)
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("read image record %s: %w", name, err))
		default:
			u.note(ctx, img)
		}
	}
	return failed
}
