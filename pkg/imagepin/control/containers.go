package control

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/running"
)

// Containers implements the API.
func (s *Server) Containers(ctx context.Context, r *api.ContainersRequest) (*api.ContainersResponse, error) {
	return guarded(ctx, s, "Containers", func(ctx context.Context) (*api.ContainersResponse, error) {
		wanted, err := s.wantedContainers(r)
		if err != nil {
			return nil, err
		}
		all, err := s.config.Running.Containers(ctx)
		if err != nil {
			return nil, err
		}
		resp := &api.ContainersResponse{}
		for _, c := range all {
			if !wanted(c) {
				continue
			}
			if compared := s.config.Running.Compare(ctx, c); compared.Differs || !r.GetDiffers() {
				resp.Containers = append(resp.Containers, s.container(compared))
			}
		}
		return resp, ctx.Err() // an end of the call must not look like an error of each pin
	})
}

// wantedContainers returns the filter of a request. It does not compare.
func (s *Server) wantedContainers(r *api.ContainersRequest) (func(running.Container) bool, error) {
	refs, err := matcher(r.GetRefGlob())
	if err != nil {
		return nil, err
	}
	pods, err := podMatcher(r.GetPodGlob())
	if err != nil {
		return nil, err
	}
	if h := r.GetHandler(); h != "" {
		if _, err := s.lookup(h); err != nil {
			return nil, err
		}
	}
	return func(c running.Container) bool {
		return (r.GetRefGlob() == "" || c.Ref != "" && refs(c.Ref)) && pods(c.Pod.Namespace, c.Pod.Name) && (r.GetHandler() == "" || r.GetHandler() == s.handlerOf(c))
	}, nil
}

// maxPodGlob is the maximum length of a pod glob in bytes: that of a namespace and a name, which are DNS names.
const maxPodGlob = 63 + 1 + 253

// podMatcher compiles the glob of a filter for pods, <namespace>/<name> or only the name; "" matches all pods.
func podMatcher(glob string) (func(namespace, name string) bool, error) {
	if glob == "" {
		return func(string, string) bool { return true }, nil
	}
	if len(glob) > maxPodGlob {
		return nil, imagepin.Invalid("pod glob", glob, fmt.Errorf("has %d bytes, and a glob has at most %d", len(glob), maxPodGlob))
	}
	if _, err := path.Match(glob, ""); err != nil {
		return nil, imagepin.Invalid("pod glob", glob, err)
	}
	return func(namespace, name string) bool {
		if strings.Contains(glob, "/") {
			name = namespace + "/" + name
		}
		ok, _ := path.Match(glob, name) // the glob is valid
		return ok
	}, nil
}

// handlerOf returns the name of the runtime handler of a container.
func (s *Server) handlerOf(c running.Container) string {
	return cmp.Or(c.Handler, s.config.Runtimes().Default().Handler)
}

func (s *Server) container(c running.Compared) *api.Container {
	a := &api.Container{
		Id: c.ID, Namespace: c.Pod.Namespace, Pod: c.Pod.Name, Container: c.Name, Volume: c.Volume, Handler: s.handlerOf(c.Container), Ref: c.Ref,
		ImageId: c.ImageID.String(), Digest: c.Digest.String(), Differs: c.Differs, CreatedAt: timestamppb.New(c.CreatedAt),
	}
	if c.Pin != nil {
		a.Pin = Pin(*c.Pin)
	}
	if c.Err != nil {
		a.Error = resolve.RedactError(c.Err).Error()
	}
	if c.Differs {
		a.Since = timestamppb.New(c.Since)
	}
	return a
}
