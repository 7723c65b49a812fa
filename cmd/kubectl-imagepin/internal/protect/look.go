package protect

import (
	"context"
	"errors"

	digest "github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/registry"
)

// protect sets the tag of a digest unless it means the digest already.
func (r *Run) protect(ctx context.Context, repo Repository, need Need, needs *Needs) Item {
	item := r.item(need, Protected)
	d, err := repo.Resolve(ctx, item.Tag)
	switch {
	case err == nil && d == need.Digest:
		return item
	case err == nil && needs.Has(Key{need.Repository, d}) && short(d) == short(need.Digest):
		item.Status, item.Reason = Conflict, "the tag is that of "+d.String()+", which is needed too"
		return item
	case err != nil && !errors.Is(err, registry.ErrNotFound):
		return failed(item, err)
	}
	item.Status = Tagged
	if r.DryRun {
		_, err = repo.Resolve(ctx, need.Digest.String())
	} else {
		err = repo.Tag(ctx, item.Tag, need.Digest)
	}
	if err != nil {
		return failed(item, err)
	}
	return item
}

// check looks up a digest, and a tag that means it.
func (r *Run) check(ctx context.Context, repo Repository, need Need) Item {
	item := r.item(need, Protected)
	d, err := repo.Resolve(ctx, item.Tag)
	switch {
	case err == nil && d == need.Digest:
		return item
	case err != nil && !errors.Is(err, registry.ErrNotFound):
		return failed(item, err)
	}
	if _, err := repo.Resolve(ctx, need.Digest.String()); err != nil {
		return failed(item, err)
	}
	item.Status = Untagged
	for _, tag := range need.Tags {
		d, err := repo.Resolve(ctx, tag)
		switch {
		case err == nil && d == need.Digest:
			item.Status, item.OtherTag = OtherTag, tag
			return item
		case err != nil && !errors.Is(err, registry.ErrNotFound):
			return failed(item, err)
		}
	}
	return item
}

// failed sets the status of an item for the error of a registry.
func failed(item Item, err error) Item {
	item.Reason = err.Error()
	switch {
	case errors.Is(err, registry.ErrNotFound):
		item.Status = Gone
	case errors.Is(err, registry.ErrRefused):
		item.Status = Refused
	default:
		item.Status = Failed
	}
	return item
}

// meansDigits reports whether a digest has the digits of a tag.
func meansDigits(d digest.Digest, digits string) bool {
	return d.Validate() == nil && short(d) == digits
}
