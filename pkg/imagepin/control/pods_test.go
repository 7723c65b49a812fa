package control

import (
	"context"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// onePod is a node with a pod.
type onePod struct{}

func (onePod) FindPod(_ context.Context, namespace, name string) (policy.Pod, string, error) {
	if namespace != "shop" || name != "web" {
		return policy.Pod{}, "", &imagepin.Error{Reason: imagepin.UnknownPod}
	}
	return policy.Pod{Namespace: namespace, Name: name}, "kata", nil
}

// TestResolvedPod checks the pod and the handler for which a reference is resolved.
func TestResolvedPod(t *testing.T) {
	s, _ := newServer(t)
	s.config.Pods = onePod{}
	for _, test := range []struct {
		request   *api.ResolveRequest
		pod       string
		handler   string
		wantError imagepin.Reason
	}{
		{request: &api.ResolveRequest{}},
		{request: &api.ResolveRequest{Handler: "arm", Scope: "node"}, handler: "arm"},
		{request: &api.ResolveRequest{Pod: "shop/web"}, pod: "web", handler: "kata"},
		{request: &api.ResolveRequest{Pod: "shop/web", Handler: "arm"}, pod: "web", handler: "arm"},
		{request: &api.ResolveRequest{Pod: "shop/web", Scope: "node"}, wantError: imagepin.InvalidRequest},
		{request: &api.ResolveRequest{Pod: "web"}, wantError: imagepin.InvalidRequest},
		{request: &api.ResolveRequest{Pod: "/web"}, wantError: imagepin.InvalidRequest},
		{request: &api.ResolveRequest{Pod: "shop/"}, wantError: imagepin.InvalidRequest},
		{request: &api.ResolveRequest{Pod: "shop/web/app"}, wantError: imagepin.InvalidRequest},
		{request: &api.ResolveRequest{Pod: "shop/other"}, wantError: imagepin.UnknownPod},
	} {
		pod, handler, err := s.resolvedPod(t.Context(), test.request)
		if test.wantError != "" {
			wantError(t, err, test.wantError)
			continue
		}
		if err != nil || pod.Name != test.pod || handler != test.handler {
			t.Errorf("%v: got pod %q, handler %q, %v", test.request, pod.Name, handler, err)
		}
	}
}
