package control

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/running"
)

// byDigest finds the images of a node, none of which is damaged.
type byDigest struct{ images }

func (b byDigest) ByID(id digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(b.entries), func(e imagepin.Entry) bool { return e.ImageID != id })
}

func (b byDigest) ByRoot(root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(b.entries), func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// movedPins has a pin of app to the digest of tool.
type movedPins struct{}

func (movedPins) PinOf(_ context.Context, ref string, _ policy.Pod) (*pin.Pin, error) {
	if ref != app {
		return nil, nil
	}
	p := &pin.Pin{ID: pin.ID{Scope: policy.NodeScope, Ref: ref}}
	p.Root.Digest = toolRoot
	return p, nil
}

// TestContainers checks the filters, and what the API says about a container that differs.
func TestContainers(t *testing.T) {
	s, _ := newServer(t)
	of := func(namespace, name, handler, ref string, id digest.Digest) running.Container {
		return running.Container{ID: name, Name: "c", Pod: policy.Pod{Namespace: namespace, Name: name}, Handler: handler, Ref: ref, ImageID: id}
	}
	s.config.Running = &running.Comparer{
		Images: byDigest{s.config.Images.(images)}, Pins: movedPins{}, Runtimes: s.config.Runtimes,
		List: func(context.Context) ([]running.Container, error) {
			return []running.Container{of("shop", "web-0", "", app, appID), of("shop", "tool-0", "gone", tool, toolID), of("ops", "tool-0", "runc", "", appID)}, nil
		},
	}
	for _, test := range []struct {
		request *api.ContainersRequest
		want    string
	}{
		{&api.ContainersRequest{}, "ops/tool-0 shop/tool-0 shop/web-0"},
		{&api.ContainersRequest{Differs: true}, "shop/web-0"},
		{&api.ContainersRequest{RefGlob: "**"}, "shop/tool-0 shop/web-0"},
		{&api.ContainersRequest{RefGlob: app}, "shop/web-0"},
		{&api.ContainersRequest{PodGlob: "tool-*"}, "ops/tool-0 shop/tool-0"},
		{&api.ContainersRequest{PodGlob: "shop/*"}, "shop/tool-0 shop/web-0"},
		{&api.ContainersRequest{PodGlob: "*/tool-0"}, "ops/tool-0 shop/tool-0"},
		{&api.ContainersRequest{Handler: "runc"}, "ops/tool-0 shop/web-0"},
	} {
		resp, err := s.Containers(t.Context(), test.request)
		if err != nil {
			t.Fatalf("%v: %v", test.request, err)
		}
		var got []string
		for _, c := range resp.GetContainers() {
			got = append(got, c.GetNamespace()+"/"+c.GetPod())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v: got %q, want %q", test.request, got, test.want)
		}
	}
	resp, err := s.Containers(t.Context(), &api.ContainersRequest{Differs: true})
	if err != nil {
		t.Fatal(err)
	}
	c := resp.GetContainers()[0]
	if c.GetHandler() != "runc" || c.GetDigest() != appRoot.String() || c.GetPin().GetRoot().GetDigest() != toolRoot.String() || c.GetSince() == nil {
		t.Errorf("got %v", c)
	}
	for _, r := range []*api.ContainersRequest{{RefGlob: "app"}, {PodGlob: "[a"}, {PodGlob: strings.Repeat("a", maxPodGlob+1)}} {
		_, err := s.Containers(t.Context(), r)
		wantError(t, err, imagepin.InvalidRequest)
	}
	_, err = s.Containers(t.Context(), &api.ContainersRequest{Handler: "gone"})
	wantError(t, err, imagepin.UnknownRuntimeHandler, "gone")
}
