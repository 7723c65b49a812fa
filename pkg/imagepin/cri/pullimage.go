package cri

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const (
	// visiblePoll is how often the service behind is asked whether it knows
	// an image, and visibleTimeout how long. It follows image events, and
	// usually has in half a millisecond.
	visiblePoll    = 200 * time.Microsecond
	visibleTimeout = 10 * time.Second
	// visibleRemind is after how long it is reminded of a name.
	visibleRemind = 2 * time.Second
)

// pullImage makes an image ready for the target of the pod it is pulled for.
func (s *Service) pullImage(ctx context.Context, r *runtime.PullImageRequest, _ func(context.Context, *runtime.PullImageRequest) (*runtime.PullImageResponse, error)) (*runtime.PullImageResponse, error) {
	c, err := s.callerOf(ctx, r.GetImage(), r.GetSandboxConfig(), false)
	if err != nil {
		return nil, err
	}
	name := r.GetImage().GetImage()
	pulled, err := s.Puller.Pull(s.namespaced(ctx), pull.Request{
		Ref: name, Runtime: c.runtime, Credential: credential(r.GetAuth()), Pod: podOf(r.GetSandboxConfig()),
	})
	if err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"ref": shortened(normalized(name)), "target": c.runtime.Target.String()}).Error("PullImage failed")
		return nil, err
	}
	s.answered.note(normalized(name), pulled.Entry)
	s.warnOfUsers(ctx, pulled.Entry)
	return &runtime.PullImageResponse{ImageRef: pulled.ImageID.String()}, nil
}

// maxLoggedName bounds a name in the log, which a caller may make as long as a
// message: the longest reference is 255 bytes of name, 128 of tag and a digest.
const maxLoggedName = 512

func shortened(name string) string {
	if len(name) <= maxLoggedName {
		return name
	}
	return strings.ToValidUTF8(name[:maxLoggedName], "") + "..."
}

func credential(a *runtime.AuthConfig) resolve.Credential {
	return resolve.Credential{
		Username: a.GetUsername(), Password: a.GetPassword(), Auth: a.GetAuth(),
		ServerAddress: a.GetServerAddress(), IdentityToken: a.GetIdentityToken(),
	}
}

// warnOfUsers speaks of a limit of kubelet's: it looks the user of an image up
// without saying for which pod, and so sees that of one platform only.
func (s *Service) warnOfUsers(ctx context.Context, e imagepin.Entry) {
	for _, o := range s.Store.ByRef(e.Ref) {
		if o.ImageID != e.ImageID && o.User != e.User {
			log.G(ctx).WithFields(log.Fields{"ref": e.Ref, "target": e.Target.String(), "other": o.Target.String()}).
				Warnf("the image's user is %q here and %q there; kubelet's runAsNonRoot check sees only the one asked for last", e.User, o.User)
			return
		}
	}
}

// hold keeps an image from being collected while a call is forwarded that uses
// it, and from being removed. The returned function lets go.
func (s *Service) hold(ctx context.Context, entries ...imagepin.Entry) (release func(), _ error) {
	if len(entries) == 0 {
		return func() {}, nil
	}
	ctx = s.namespaced(ctx)
	var l leases.Lease
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), visibleTimeout)
		defer cancel()
		if err := s.Leases.Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("lease", l.ID).Warn("a lease stays until it expires")
		}
	}
	if err := s.Store.Records.Atomically(ctx, func(ctx context.Context, _ images.Store) (err error) {
		l, err = s.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Hour),
			leases.WithLabel(imagepin.LeaseLabel, "use"))
		for _, e := range entries {
			if err != nil {
				break
			}
			// The manifest keeps its configuration, and that its snapshots.
			err = s.Leases.AddResource(ctx, l, leases.Resource{ID: e.Manifest.String(), Type: "content"})
		}
		return err
	}); err != nil {
		if l.ID != "" {
			release()
		}
		return nil, fmt.Errorf("hold an image: %w", err)
	}
	failpoint.Reach("use.leased")
	return release, nil
}
