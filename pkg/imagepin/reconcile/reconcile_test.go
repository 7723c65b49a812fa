package reconcile

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// records is an image store without transactions.
type records struct{ images.Store }

func (r records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r)
}

// One image that cannot be recorded does not keep the others from being
// adopted: its configuration names a user that no label has room for.
func TestAdoptionGoesOnWithoutWhatCannotBeRecorded(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "first"}},
		runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	s := store.New(store.Config{
		Records: records{n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: runtimes,
	})
	blobs := ctdtest.Blobs{}
	good := blobs.Image("linux/amd64", "good", nil)
	bad := good
	bad.Config = blobs.AddJSON(ocispec.MediaTypeImageConfig, map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"User": strings.Repeat("u", 4096)},
	})
	bad.Manifest = blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: bad.Config,
	})
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, good, "first")
	for name, target := range map[string]ocispec.Descriptor{"registry.example/good:1": good.Manifest, "registry.example/bad:1": bad.Manifest} {
		if _, err := n.Images.Create(ctx, images.Image{Name: name, Target: target}); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := s.Load(ctx)
	if err != nil || len(loaded.Unexplained) != 2 {
		t.Fatalf("%v, %v", loaded, err)
	}
	r := New(Config{Store: s, Content: n.Content, Leases: n.Leases, Events: n.Events, Runtimes: runtimes, Namespace: ctdtest.Namespace})
	r.healing = newHealing(r)
	if err := r.adoptAll(ctx, loaded.Unexplained, loaded.Have); err != nil {
		t.Fatal(err)
	}
	if len(s.ByRef("registry.example/good:1")) != 1 || len(s.ByRef("registry.example/bad:1")) != 0 {
		t.Errorf("images %+v", s.Images())
	}
}
