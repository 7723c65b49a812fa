package pull

import (
	"context"

	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Locked is an image of a lock that is about to be applied. Its caller has called the image verifiers, or names VerifyAs.
type Locked struct {
	// Ref is the reference to record the image under: the image by digest, or the tag that the applied lock has for it.
	Ref     reference.Named
	Root    ocispec.Descriptor
	Runtime runtimeplatform.Runtime
	From    From
	// Credential is for the registry. The zero value means the node's own credentials.
	Credential resolve.Credential
	Progress   transfer.ProgressFunc
	// VerifyAs are references for which the image verifiers are called before anything is fetched.
	VerifyAs []reference.Named
}

// MakeLocked pulls and unpacks an image of a lock for one target. It fails as [Maker.Make] does, and as
// [decide.Decider.Decide] does for a reference with a digest.
func (p *Puller) MakeLocked(ctx context.Context, l Locked) (Pulled, error) {
	v := decide.Verdict{Ref: l.Ref, Root: l.Root, Credential: l.Credential}
	if _, digested := l.Ref.(reference.Digested); digested && l.From == FromRegistry {
		var err error
		v, err = p.decider.Decide(ctx, decide.Request{Ref: l.Ref, Credential: l.Credential, Target: l.Runtime.Target})
		if err != nil {
			return Pulled{}, complete(err, imagepin.CannotPullImageManifest, l.Ref.String(), l.Runtime.Target)
		}
	}
	for _, ref := range l.VerifyAs {
		if err := p.Verify(ctx, ref, v.Root); err != nil {
			return Pulled{}, err
		}
	}
	return p.make(ctx, Job{Verdict: v, Runtime: l.Runtime, From: l.From, Progress: l.Progress, verified: true})
}
