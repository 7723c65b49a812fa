package cri

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// oneImage is an upstream that knows one image, by each name.
type oneImage struct {
	runtime.ImageServiceClient
	image *runtime.Image
}

func (o oneImage) ImageStatus(context.Context, *runtime.ImageStatusRequest, ...grpc.CallOption) (*runtime.ImageStatusResponse, error) {
	return &runtime.ImageStatusResponse{Image: o.image}, nil
}

// noPods is an upstream without pods.
type noPods struct{ runtime.RuntimeServiceClient }

func (noPods) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{}, nil
}

func (noPods) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{}, nil
}

// interrupted is a store that calls meanwhile before it removes records for the first time.
type interrupted struct {
	*store.Store
	meanwhile func()
}

func (s *interrupted) RemoveRecords(ctx context.Context, id digest.Digest, names ...string) (bool, error) {
	if do := s.meanwhile; do != nil {
		s.meanwhile = nil
		do()
	}
	return s.Store.RemoveRecords(ctx, id, names...)
}

// TestRemoveImageDuringAdoption removes an image without keys, which is adopted before its records are removed. The image
// is removed with its keys.
func TestRemoveImageDuringAdoption(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	root := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("manifest"), Size: 1}
	id, tag := digest.FromString("config"), testRef(0)
	for _, name := range []string{tag, id.String()} {
		if _, err := n.Images.Create(n.Context(t), images.Image{Name: name, Target: root}); err != nil {
			t.Fatal(err)
		}
	}
	st := &interrupted{Store: store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})}
	st.meanwhile = func() {
		_, err := st.Put(n.Context(t), "", imagepin.Entry{
			Key: imagepin.Key{Ref: tag, Target: runtimes.Default().Target}, Root: root, Manifest: root.Digest, ImageID: id,
			ReadyAt: time.Now(), Source: imagepin.SourceAdopted, Record: "registry.example/team/app0@" + root.Digest.String(), RecordTarget: root,
		})
		if err != nil {
			t.Error(err)
		}
	}
	s := New(Config{
		Namespace: ctdtest.Namespace, Store: st, Locks: new(pull.Locks), Runtimes: ctdtest.Always(runtimes), Settings: ctdtest.Always(&Settings{}),
	})
	s.base.images, s.base.runtimes = oneImage{image: &runtime.Image{Id: id.String(), RepoTags: []string{tag}}}, noPods{}
	r := &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: tag}}
	if _, err := s.remover.removeImage(t.Context(), r, nil); err != nil {
		t.Fatal(err)
	}
	if left := n.Records(t); len(left) > 0 || len(st.Images()) > 0 {
		t.Errorf("got records %v and images %v after the removal, want none", left, st.Images())
	}
}
