package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	digest "github.com/opencontainers/go-digest"
)

// errTagStays is the error of a registry that reports to have deleted a tag, and still has it, or does not find one that it has.
var errTagStays = errors.New("the registry keeps deleted tags")

// errWithManifest is the error of a registry that deletes a manifest with its tag.
var errWithManifest = errors.New("the registry deletes a manifest with its tag")

// CanUntag returns nil if [Repository.Untag] deletes a tag and nothing else, or why not. It tries it with a tag of an image without
// layers: registries differ, and only the OCI Distribution Specification of version 1.1 says that a DELETE request with a tag
// deletes the tag. Where it works, the image stays in the repository without a tag.
func (r *Repository) CanUntag(ctx context.Context, tag string) error {
	// A registry that refuses to delete tags says so also for one that it does not have.
	if err := r.Untag(ctx, tag); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("the registry does not delete tags: %w", err)
	}
	d, err := r.pushEmpty(ctx, tag)
	if err != nil {
		return err
	}
	if err := r.Untag(ctx, tag); err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("the registry does not delete tags: %w", err)
	}
	switch _, err := r.Resolve(ctx, tag); {
	case err == nil:
		return errTagStays
	case !errors.Is(err, ErrNotFound):
		return err
	}
	_, err = r.Resolve(ctx, d.String())
	if errors.Is(err, ErrNotFound) {
		return errWithManifest
	}
	return err
}

// pushEmpty pushes an image without layers for a tag, and returns its digest. The tag is part of the image, so that no other image
// has the digest.
func (r *Repository) pushEmpty(ctx context.Context, tag string) (digest.Digest, error) {
	config, err := empty.Image.ConfigFile()
	if err != nil {
		return "", err
	}
	config = config.DeepCopy()
	config.Config.Labels = map[string]string{"imagepin.io/tag": tag}
	img, err := mutate.ConfigFile(empty.Image, config)
	if err != nil {
		return "", err
	}
	client, err := r.client(ctx, transport.PushScope)
	if err != nil {
		return "", err
	}
	if err := remote.Write(r.name.Tag(tag), img, remote.WithContext(ctx), remote.WithTransport(client.Transport)); err != nil {
		return "", failure(err)
	}
	h, err := img.Digest()
	if err != nil {
		return "", err
	}
	return digest.Digest(h.String()), nil
}
