package cri

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/bandwidth"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

const (
	// visiblePoll is how often upstream is polled for an image, and visibleTimeout for how long. Upstream follows image
	// events, and usually knows an image within half a millisecond.
	visiblePoll    = 200 * time.Microsecond
	visibleTimeout = 10 * time.Second
	// visibleRemind is the time after which upstream is notified of a name again.
	visibleRemind = 200 * time.Millisecond
)

// pullImage makes an image ready for the target of the pod that it is pulled for.
func (s *imageCalls) pullImage(ctx context.Context, r *runtime.PullImageRequest, _ func(context.Context, *runtime.PullImageRequest) (*runtime.PullImageResponse, error)) (*runtime.PullImageResponse, error) {
	pulled, target, err := s.pull(ctx, r)
	if err != nil {
		logPullFailed(ctx, r, target, err)
		return nil, err
	}
	ref := normalized(r.GetImage().GetImage())
	s.answered.Add(ref, answer{pulled, s.isTagged(ref)})
	s.noteUse(ctx, pulled.ImageID, pulled.Target)
	s.warnUserMismatch(ctx, pulled)
	return &runtime.PullImageResponse{ImageRef: pulled.ImageID.String()}, nil
}

// pull is pullImage without its response. target is empty if it fails before the target is known.
func (s *imageCalls) pull(ctx context.Context, r *runtime.PullImageRequest) (_ imagepin.Entry, target string, _ error) {
	name := r.GetImage().GetImage()
	if err := imagepin.CheckReference(name); err != nil {
		return imagepin.Entry{}, "", err
	}
	c, err := s.callerOf(ctx, r.GetImage(), r.GetSandboxConfig(), false)
	if err != nil {
		return imagepin.Entry{}, "", err
	}
	target = c.runtime.Target.String()
	if err := s.waitCompared(ctx, normalized(name)); err != nil {
		return imagepin.Entry{}, target, err
	}
	pod := podOf(r.GetSandboxConfig())
	pulled, err := s.Puller.Pull(bandwidth.ForPod(s.namespaced(ctx)), pull.Request{
		Ref: name, Runtime: c.runtime, Credential: credential(r.GetAuth()), Pod: pod,
		Running: func(ctx context.Context) (digest.Digest, error) {
			now, err := s.podRuns(ctx, normalized(name), pod)
			if !now.resolved {
				return "", err
			}
			return now.root, err
		},
	})
	return pulled.Entry, target, err
}

// logPullFailed logs a PullImage that failed. target is empty if the call failed before its target was known.
func logPullFailed(ctx context.Context, r *runtime.PullImageRequest, target string, err error) {
	ref := truncateName(normalized(r.GetImage().GetImage()))
	entry := log.G(ctx).WithError(imagepin.BoundError(err, imagepin.MaxErrorText)).WithField("ref", ref)
	if target != "" {
		entry = entry.WithField("target", target)
	}
	entry.Error("PullImage failed")
}

// maxLoggedName limits the length of a name in the log, in bytes. A caller can send a name as long as a message; the
// longest valid reference has a name of 255 bytes, a tag of 128 bytes and a digest.
const maxLoggedName = 512

func truncateName(name string) string {
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

// warnUserMismatch warns if an image's user differs between targets. kubelet looks up the user of an image without
// naming a pod, so it sees the user of one platform only.
func (s *imageCalls) warnUserMismatch(ctx context.Context, e imagepin.Entry) {
	for _, o := range s.Store.ByRef(e.Ref) {
		if o.ImageID != e.ImageID && o.User != e.User {
			log.G(ctx).WithFields(log.Fields{"ref": e.Ref, "target": e.Target.String(), "other": o.Target.String()}).
				Warnf("the image's user differs between targets, %q for this target and %q for the other; kubelet's runAsNonRoot check sees only the one looked up last",
					imagepin.Bound(e.User, maxLoggedUser), imagepin.Bound(o.User, maxLoggedUser))
			return
		}
	}
}
