package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"go.opentelemetry.io/otel/trace"
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
	e, err := s.Puller.Pull(s.namespaced(ctx), pull.Request{
		Ref: name, Runtime: c.runtime, Credential: credential(r.GetAuth()), Pod: podOf(r.GetSandboxConfig()),
	})
	if err != nil {
		log.G(ctx).WithError(err).WithFields(log.Fields{"ref": shortened(normalized(name)), "target": c.runtime.Target.String()}).Error("PullImage failed")
		return nil, err
	}
	s.answered.note(normalized(name), e)
	s.warnOfUsers(ctx, e)
	return &runtime.PullImageResponse{ImageRef: e.ImageID.String()}, nil
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

// WaitVisible waits until the service behind knows an image under names, as long as
// it is wanted under each. Where that takes long, remind is called once for each
// name: it makes the service behind read the record again, which it does not by
// itself where it could not read the image when it started. It fails with
// [imagepin.NotVisible].
func WaitVisible(ctx context.Context, behind runtime.ImageServiceClient, id digest.Digest, names []string, wanted func(name string) bool, remind func(ctx context.Context, name string) error) error {
	ctx, cancel := context.WithTimeoutCause(untraced(ctx), visibleTimeout, errNotVisible)
	defer cancel()
	tick := time.NewTicker(visiblePoll)
	defer tick.Stop()
	late := time.NewTimer(visibleRemind)
	defer late.Stop()
	for _, name := range names {
		for wanted(name) {
			resp, err := behind.ImageStatus(ctx, &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: name}})
			if err == nil && resp.GetImage().GetId() == id.String() {
				break
			}
			select {
			case <-tick.C:
			case <-late.C:
				for _, name := range names {
					if err := remind(ctx, name); err != nil && !errdefs.IsNotFound(err) && ctx.Err() == nil {
						log.G(ctx).WithError(err).WithField("image", name).Warn("cannot remind containerd's CRI of an image")
					}
				}
			case <-ctx.Done():
				if cause := context.Cause(ctx); !errors.Is(cause, errNotVisible) {
					return cause
				}
				return &imagepin.Error{
					Name: imagepin.NotVisible, Class: errdefs.ErrUnavailable, Err: err,
					What: fmt.Sprintf("containerd's CRI service did not take notice of %s within %s", name, visibleTimeout),
					Do:   "Try again; look for errors of containerd's event handling in its log if it stays.",
				}
			}
		}
	}
	return nil
}

// untraced keeps the calls of a poll out of the caller's trace.
func untraced(ctx context.Context) context.Context {
	span := trace.SpanContextFromContext(ctx)
	return trace.ContextWithSpanContext(ctx, span.WithTraceFlags(span.TraceFlags().WithSampled(false)))
}

var errNotVisible = errors.New("not visible in time")

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
