package control

import (
	"context"
	"errors"
	"strings"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// Pods finds pods of the node. [cri.Service] implements it.
type Pods interface {
	// FindPod returns a pod and its runtime handler. It fails with [imagepin.UnknownPod].
	FindPod(ctx context.Context, namespace, name string) (_ policy.Pod, handler string, _ error)
}

// resolvedPod returns the pod and the handler that a request is for. It fails with [imagepin.InvalidRequest] (ErrInvalidArgument) and
// [imagepin.UnknownPod] (ErrNotFound).
func (s *Server) resolvedPod(ctx context.Context, r *api.ResolveRequest) (_ policy.Pod, handler string, _ error) {
	if r.GetPod() == "" {
		return policy.Pod{}, r.GetHandler(), nil
	}
	if r.GetScope() != "" {
		return policy.Pod{}, "", imagepin.Invalid("scope", r.GetScope(), errors.New("cannot be combined with a pod, which has its own"))
	}
	namespace, name, ok := strings.Cut(r.GetPod(), "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return policy.Pod{}, "", imagepin.Invalid("pod", r.GetPod(), errors.New("is not a namespace and a name, such as \"shop/web-7d4b9c-x8x2b\""))
	}
	pod, handler, err := s.config.Pods.FindPod(ctx, namespace, name)
	if r.GetHandler() != "" {
		handler = r.GetHandler()
	}
	return pod, handler, err
}
