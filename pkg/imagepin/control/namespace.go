package control

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// checkNamespace fails with InvalidRequest (ErrInvalidArgument) if a call names a namespace that imagepin does not serve. A call
// without a namespace is for the one that imagepin serves.
func (s *Server) checkNamespace(ctx context.Context) error {
	name, ok := namespaces.Namespace(ctx)
	if !ok || name == s.config.Namespace {
		return nil
	}
	return &imagepin.Error{
		Reason: imagepin.InvalidRequest, Class: errdefs.ErrInvalidArgument,
		Message: fmt.Sprintf("namespace %q: imagepin serves only the namespace of the CRI, %q", name, s.config.Namespace),
		Hint:    "Leave out --namespace, and unset CONTAINERD_NAMESPACE.",
	}
}
