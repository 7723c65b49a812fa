// Package registry looks up the digests of tags at registries, and sets and deletes tags.
package registry

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// maxError is the length of the part of an error that is a registry's.
const maxError = 500

// Resolver resolves tags, with the credentials of the user's Docker configuration.
type Resolver struct {
	// Insecure is whether to use HTTP for a registry that does not serve HTTPS.
	Insecure bool
}

// Digest returns the digest that a registry reports for an image with a tag: that of an index if the image has more than
// one platform. It sends a HEAD request, and then a GET request if the response has no digest.
func (r Resolver) Digest(ctx context.Context, image string) (string, error) {
	digest, err := r.digest(ctx, image)
	if err != nil {
		return "", fmt.Errorf("cannot resolve %s: %.*s", image, maxError, withoutAnswer(err))
	}
	return digest, nil
}

func (r Resolver) digest(ctx context.Context, image string) (string, error) {
	opts := []name.Option{name.StrictValidation}
	if r.Insecure {
		opts = append(opts, name.Insecure)
	}
	tag, err := name.NewTag(image, opts...)
	if err != nil {
		return "", err
	}
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithUserAgent("kubectl-imagepin")}
	head, err := remote.Head(tag, with...)
	if err == nil {
		return head.Digest.String(), nil
	}
	if unreachable := (*url.Error)(nil); errors.As(err, &unreachable) {
		return "", err
	}
	manifest, err := remote.Get(tag, with...)
	if err != nil {
		return "", err
	}
	return manifest.Digest.String(), nil
}
