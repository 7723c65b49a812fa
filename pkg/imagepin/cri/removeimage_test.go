package cri

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/images"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// emptyUpstream is a CRI service without sandboxes and containers.
type emptyUpstream struct{ runtime.RuntimeServiceClient }

func (emptyUpstream) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{}, nil
}

func (emptyUpstream) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{}, nil
}

// visible is an upstream that has every image.
type visible struct{}

// WaitVisible implements Images.
func (visible) WaitVisible(context.Context, imagepin.Entry) error { return nil }

// adoptedNode is a node with one adopted image, which has no key but that of its tag, and with one sandbox.
type adoptedNode struct {
	*ctdtest.Node
	*Service
	img ctdtest.Image
}

const (
	adoptedTag     = "registry.example/team/app:v1"
	adoptedSandbox = "sandbox"
)

func newAdoptedNode(t *testing.T) *adoptedNode {
	t.Helper()
	n := ctdtest.New(t, "first")
	blobs := ctdtest.Blobs{}
	a := &adoptedNode{Node: n, img: blobs.Image("linux/amd64", "app", nil)}
	index := blobs.Index(a.img.Manifest)
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Keep(ctx, t, a.img, &index)
	n.Unpack(ctx, t, a.img, "first")
	record, err := n.Images.Create(ctx, images.Image{Name: adoptedTag, Target: index})
	noError(t, err)

	handlers := []runtimeplatform.Handler{{Name: "runc", Snapshotter: "first"}}
	runtimes, err := runtimeplatform.New("runc", handlers, runtimeplatform.Host{})
	noError(t, err)
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	noError(t, err)
	s := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter,
		Runtimes: ctdtest.Always(runtimes),
	})
	_, err = s.Adopt(ctx, store.Adoption{Image: record, Entries: []imagepin.Entry{{
		Key: imagepin.Key{Ref: adoptedTag, Target: runtimes.Default().Target}, Root: index, Manifest: a.img.Manifest.Digest,
		ImageID: a.img.Config.Digest, ChainID: a.img.ChainID, ReadyAt: record.UpdatedAt, Source: imagepin.SourceAdopted,
		Record: adoptedTag, RecordTarget: index,
	}}})
	noError(t, err)
	pins := pin.New(pin.Config{})
	a.Service = New(Config{
		Namespace: ctdtest.Namespace, Store: s, Records: ctdtest.Records{Store: n.Images}, Images: visible{}, Locks: &pull.Locks{}, Pins: pins,
		Decider: decide.New(decide.Config{Policy: ctdtest.Always(rules), Pins: pins, Images: s}), Content: n.Content,
		Holder: lease.NewHolder(n.Leases, ctdtest.Records{Store: n.Images}), Released: func() {},
		Runtimes: ctdtest.Always(runtimes), Snapshotter: n.Snapshotter, Settings: ctdtest.Always(&Settings{}),
	})
	a.base.images, a.base.runtimes = &slowUpstream{id: a.img.Config.Digest}, emptyUpstream{}
	a.base.sandboxes.add(adoptedSandbox, &sandbox{handler: "runc"})
	return a
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// complete reports whether the image has its key, content and snapshot.
func (a *adoptedNode) complete(t *testing.T) bool {
	t.Helper()
	return len(a.base.Store.ByRef(adoptedTag)) == 1 && a.HasBlob(t, a.img.Manifest.Digest) && a.HasBlob(t, a.img.Config.Digest) &&
		a.HasSnapshot(t, "first", a.img.ChainID)
}

// TestRemoveImageWaitsForCreateContainer removes an adopted image while CreateContainer of it is in progress.
// CreateContainer locks the image by its digest, by which it has no key. RemoveImage waits until CreateContainer is
// answered, and then removes the image.
func TestRemoveImageWaitsForCreateContainer(t *testing.T) {
	for name, image := range map[string]func(*adoptedNode) string{
		"by tag":      func(*adoptedNode) string { return adoptedTag },
		"by image ID": func(a *adoptedNode) string { return a.img.Config.Digest.String() },
	} {
		t.Run(name, func(t *testing.T) {
			a := newAdoptedNode(t)
			synctest.Test(t, func(t *testing.T) {
				answer, created, removed := make(chan struct{}), make(chan error, 1), make(chan error, 1)
				go func() {
					_, err := a.containers.createContainer(t.Context(), &runtime.CreateContainerRequest{
						PodSandboxId: adoptedSandbox, Config: &runtime.ContainerConfig{Image: &runtime.ImageSpec{Image: image(a)}},
					}, func(context.Context, *runtime.CreateContainerRequest) (*runtime.CreateContainerResponse, error) {
						<-answer
						return &runtime.CreateContainerResponse{ContainerId: "container"}, nil
					})
					created <- err
				}()
				synctest.Wait() // upstream creates the container
				go func() {
					_, err := a.remover.removeImage(t.Context(), &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: image(a)}}, nil)
					removed <- err
				}()
				synctest.Wait()
				if len(created) > 0 || len(removed) > 0 || !a.complete(t) {
					t.Errorf("while upstream creates the container: CreateContainer answered: %t, RemoveImage answered: %t, image complete: %t",
						len(created) > 0, len(removed) > 0, a.complete(t))
				}
				close(answer)
				noError(t, <-created)
				noError(t, <-removed)
				if len(a.base.Store.ByRef(adoptedTag)) > 0 || a.HasBlob(t, a.img.Manifest.Digest) {
					t.Error("the image is on the node after its removal")
				}
			})
		})
	}
}
