package pull

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"k8s.io/utils/lru"
)

// maxAccepted is the maximum number of images of which it is remembered that the image verifiers have accepted them. A
// forgotten image costs one call.
const maxAccepted = 4096

// versioned is an image verifier that knows whether what decides has changed. What another one accepts is not kept.
type versioned interface {
	// Version returns the same text only while the verifier runs the same programs.
	Version(ctx context.Context) (string, error)
}

// accepted has the images that the image verifiers have accepted. What they refuse is not kept.
type accepted struct {
	images *lru.Cache // of acceptedImage, the last maxAccepted
}

type acceptedImage struct {
	ref     string
	digest  digest.Digest
	version string
}

func newAccepted() *accepted { return &accepted{lru.New(maxAccepted)} }

// has reports whether an image was accepted. An image without a version was not.
func (a *accepted) has(i acceptedImage) bool {
	if i.version == "" {
		return false
	}
	_, ok := a.images.Get(i)
	return ok
}

// keep remembers that an image was accepted. now is the version of the verifiers afterwards.
func (a *accepted) keep(i acceptedImage, now string) {
	if i.version != "" && i.version == now {
		a.images.Add(i, struct{}{})
	}
}

// versionOf returns a text that is the same only while the verifiers run the same programs. It is empty if that is not known.
func versionOf(ctx context.Context, verifiers map[string]imageverifier.ImageVerifier) string {
	var all strings.Builder
	for _, name := range slices.Sorted(maps.Keys(verifiers)) {
		v, ok := verifiers[name].(versioned)
		if !ok {
			return ""
		}
		version, err := v.Version(ctx)
		if err != nil {
			log.G(ctx).WithError(err).WithField("verifier", name).Warn("cannot read an image verifier, its verdicts are not kept")
			return ""
		}
		fmt.Fprintf(&all, "%q %q\n", name, version)
	}
	return all.String()
}
