package cri

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// volumeUpstream is an upstream with one pod. The container of the pod mounts one image, and its own image has no key.
type volumeUpstream struct {
	runtime.RuntimeServiceClient
	sandbox  *runtime.PodSandbox
	volume   *runtime.ImageSpec
	removed  bool  // the container is removed
	err      error // of ContainerStatus
	statuses int   // calls of ContainerStatus
}

const volumeContainer = "container"

func (u *volumeUpstream) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: []*runtime.PodSandbox{u.sandbox}}, nil
}

func (u *volumeUpstream) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	if u.removed {
		return &runtime.ListContainersResponse{}, nil
	}
	tool := versionOf("tool", "").id.String()
	return &runtime.ListContainersResponse{Containers: []*runtime.Container{{
		Id: volumeContainer, PodSandboxId: u.sandbox.GetId(), State: runtime.ContainerState_CONTAINER_EXITED,
		Image: &runtime.ImageSpec{Image: tool}, ImageRef: tool, ImageId: tool,
	}}}, nil
}

func (u *volumeUpstream) ContainerStatus(_ context.Context, r *runtime.ContainerStatusRequest, _ ...grpc.CallOption) (*runtime.ContainerStatusResponse, error) {
	u.statuses++
	if u.err != nil {
		return nil, u.err
	}
	if r.GetContainerId() != volumeContainer {
		return nil, status.Error(codes.NotFound, "no such container")
	}
	return &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{
		Id: volumeContainer, Mounts: []*runtime.Mount{{HostPath: "/etc/hosts"}, {HostPath: "/volume", Readonly: true, Image: u.volume}},
	}}, nil
}

// mountVolume connects the node with an upstream whose only container mounts an image. Its sandbox is not ready.
func (p *pinnedNode) mountVolume(volume *runtime.ImageSpec) *volumeUpstream {
	p.t.Helper()
	p.runSandbox("a", "")
	u := &volumeUpstream{sandbox: p.upstream.sandboxes[0], volume: volume}
	u.sandbox.State = runtime.PodSandboxState_SANDBOX_NOTREADY
	p.base.runtimes = u
	return u
}

// use pins a reference for a pod in the namespace of the node's sandbox.
func (p *pinnedNode) use(id pin.ID) error {
	_, err := p.pins.MakeForNamespace(p.t.Context(), "team", id, versionOf("one", "").root, pin.ByUse, false)
	return err
}

// expirePins removes the pins that are not in use, whatever the time of their last use.
func (p *pinnedNode) expirePins() {
	p.t.Helper()
	used, err := (&containers{p.base}).pinsInUse(p.t.Context())
	noError(p.t, err)
	inUse := func(id pin.ID) bool { return used[id] }
	noError(p.t, p.pins.Expire(p.t.Context(), time.Now().Add(time.Hour), inUse, pin.KeepNone))
}

func (p *pinnedNode) expectPin(what string, id pin.ID, want bool) {
	p.t.Helper()
	if _, got := p.pins.Get(id); got != want {
		p.t.Errorf("%s: got pin %s: %t, want %t", what, id, got, want)
	}
}

// TestPinOfImageVolume checks that a full cap does not evict, and that pin_ttl does not remove, a pin that only an image
// volume uses, until the container is removed.
func TestPinOfImageVolume(t *testing.T) {
	v := versionOf("one", "")
	for consistency, scope := range map[policy.Consistency]policy.Scope{
		policy.Node: policy.NodeScope, policy.Workload: policy.WorkloadScope("team", "pod-template-hash", "a"),
	} {
		for name, c := range map[string]struct {
			volume *runtime.ImageSpec
			onNode bool
		}{
			"image ID and reference": {&runtime.ImageSpec{Image: v.id.String(), UserSpecifiedImage: pinnedTag}, false},
			"image ID":               {&runtime.ImageSpec{Image: v.id.String()}, true},
			"reference":              {&runtime.ImageSpec{Image: pinnedTag}, true},
		} {
			t.Run(fmt.Sprintf("%s/%s", scope, name), func(t *testing.T) {
				p := newPinnedNode(t, consistency)
				p.maxPins = 1
				u := p.mountVolume(c.volume)
				if c.onNode {
					p.put(v, "", pinnedTag, v.byDigest)
				}
				held, other := pin.ID{Scope: scope, Ref: pinnedTag}, pin.ID{Scope: scope, Ref: testRef(0)}
				noError(t, p.use(held))
				if err := p.use(other); !errdefs.IsResourceExhausted(err) {
					t.Errorf("a pin above the cap: got %v, want PinLimitReached", err)
				}
				p.expectPin("full cap", held, true)
				p.expirePins()
				p.expectPin("expiry", held, true)

				u.removed = true
				noError(t, p.use(other))
				p.expectPin("full cap without the container", held, false)
				p.expirePins()
				p.expectPin("expiry without the container", other, false)
			})
		}
	}
}

// TestPinsInUseReadsFewContainers checks that containers are read for their image volumes only if a pin may be unused.
func TestPinsInUseReadsFewContainers(t *testing.T) {
	p := newPinnedNode(t, policy.Workload)
	u := p.mountVolume(&runtime.ImageSpec{Image: pinnedTag})
	u.sandbox.State = runtime.PodSandboxState_SANDBOX_READY
	scope := policy.WorkloadScope("team", "pod-template-hash", "a")
	expect := func(what string, want int) {
		t.Helper()
		u.statuses = 0
		_, err := (&containers{p.base}).pinsInUse(t.Context())
		noError(t, err)
		if u.statuses != want {
			t.Errorf("%s: got %d calls of ContainerStatus, want %d", what, u.statuses, want)
		}
	}
	expect("no pins", 0)
	noError(t, p.use(pin.ID{Scope: scope, Ref: pinnedTag}))
	expect("only pins of a ready sandbox", 0)
	noError(t, p.use(pin.ID{Scope: policy.NodeScope, Ref: testRef(0)}))
	expect("another pin", 1)
}

// TestUntaggedImageOfVolume checks that an image without a key is not removed while an image volume uses it.
func TestUntaggedImageOfVolume(t *testing.T) {
	v := versionOf("one", "")
	p := newPinnedNode(t, policy.Off)
	u := p.mountVolume(&runtime.ImageSpec{Image: v.id.String()})
	_, err := p.Records.Create(p.ctx(), images.Image{
		Name: v.id.String(), Target: v.root, Labels: map[string]string{"io.cri-containerd.image": "managed"},
	})
	noError(t, err)
	p.Store.(*store.Store).NoteUntagged(store.Untagged{Entry: imagepin.Entry{ImageID: v.id}})
	expect := func(what string, want bool) {
		t.Helper()
		noError(t, (&remover{p.base}).removeUntagged(t.Context(), time.Now().Add(time.Hour)))
		if _, err := p.Records.Get(p.ctx(), v.id.String()); (err == nil) != want {
			t.Errorf("%s: got %v for the record, want it: %t", what, err, want)
		}
	}
	expect("mounted", true)
	u.removed = true
	expect("not mounted", false)
}

// TestContainerStatusFails checks that no pin and no image without a key counts as unused if the image volumes of a
// container are unknown, and that RemoveImage works nevertheless. A container that has been removed meanwhile has none.
func TestContainerStatusFails(t *testing.T) {
	p := newPinnedNode(t, policy.Node)
	noError(t, p.use(pin.ID{Scope: policy.NodeScope, Ref: pinnedTag}))
	u := p.mountVolume(&runtime.ImageSpec{Image: pinnedTag})
	for what, c := range map[string]struct {
		call  func(context.Context) error
		fails bool
	}{
		"pins": {func(ctx context.Context) error { _, err := (&containers{p.base}).pinsInUse(ctx); return err }, true},
		"images": {func(ctx context.Context) error {
			_, err := (&remover{p.base}).inUse(ctx, false, make(volumesOf))
			return err
		}, false},
		"images to keep": {func(ctx context.Context) error {
			_, err := (&remover{p.base}).inUse(ctx, true, make(volumesOf))
			return err
		}, true},
		"untagged images": {func(ctx context.Context) error { _, err := (&remover{p.base}).imagesInUse(ctx); return err }, true},
	} {
		for code, fails := range map[codes.Code]bool{codes.NotFound: false, codes.Unavailable: c.fails} {
			u.err = status.Error(code, "")
			if err := c.call(t.Context()); (err != nil) != fails {
				t.Errorf("%s in use, ContainerStatus returns %s: got %v, want an error: %t", what, code, err, fails)
			}
		}
	}
}
