package cri

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/log"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

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
func (s *imageCalls) pullImage(ctx context.Context, r *runtime.PullImageRequest, _ func(context.Context, *runtime.PullImageRequest) (*runtime.PullImageResponse, error)) (*runtime.PullImageResponse, error) {
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
func (s *imageCalls) warnOfUsers(ctx context.Context, e imagepin.Entry) {
	for _, o := range s.Store.ByRef(e.Ref) {
		if o.ImageID != e.ImageID && o.User != e.User {
			log.G(ctx).WithFields(log.Fields{"ref": e.Ref, "target": e.Target.String(), "other": o.Target.String()}).
				Warnf("the image's user is %q here and %q there; kubelet's runAsNonRoot check sees only the one asked for last", e.User, o.User)
			return
		}
	}
}
