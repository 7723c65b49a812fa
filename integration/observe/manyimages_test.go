package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/offline"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestManyImages starts a node with 10,000 images. A list of them is larger than 16 MiB, the limit of a message on
// containerd's socket. The CRI and the imagepin command list all of them, and a check finds no damage. The test is not
// parallel: containerd reads all images at once when it starts.
func TestManyImages(t *testing.T) {
	const count = 10_000
	r := &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}
	r.Node = testkit.NewNode(t, node.Options{
		NoPods: true, LogLevel: "info", StartTimeout: 5 * time.Minute, SandboxImage: testkit.PushPause(t, r.Reg),
	})
	all := fill(r, count)
	if err := r.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	_, containerdErr := r.Client().ImageService().List(namespaces.WithNamespace(r.Ctx, node.Namespace))
	_, controlErr := r.Control().Images(r.Ctx, &api.ImagesRequest{})
	if !errdefs.IsResourceExhausted(containerdErr) || status.Code(controlErr) != codes.ResourceExhausted {
		t.Fatalf("too few images: a list of them fits in one message: %v, %v", containerdErr, controlErr)
	}
	wantMany(r, all)
	if r.Options().Mode == node.Serve {
		if err := r.EndServe(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := r.StartServe(); err != nil {
			t.Fatal(err)
		}
		if err := r.WaitReady(r.Ctx); err != nil {
			t.Fatal(err)
		}
		wantMany(r, all)
	}

	// Pull and remove one more image.
	ref, _ := r.Push("one/more:v1", images.Options{}, images.HostPlatform())
	id := r.MustPull(ref, "")
	if got := r.Listed(); len(got) != count+1 || got[id] == nil {
		t.Errorf("got %d images after one more pull, want %d with %s", len(got), count+1, id)
	}
	r.MustRemove(id, "")
	if got := r.Listed(); len(got) != count {
		t.Errorf("got %d images after the removal, want %d", len(got), count)
	}
}

// wantMany fails the test unless the CRI and the imagepin command list exactly these images.
func wantMany(r *testkit.Rig, all map[string]manyImage) {
	r.T.Helper()
	listed, err := r.Images().ListImages(r.Ctx, &cri.ListImagesRequest{})
	if err != nil {
		r.T.Fatal(err)
	}
	for _, img := range listed.Images {
		if want, ok := all[img.Id]; !ok || !slices.Equal(img.RepoTags, []string{want.tag}) || !slices.Equal(img.RepoDigests, []string{want.digested}) {
			r.T.Fatalf("image %s: got tags %q and digests %q", img.Id, img.RepoTags, img.RepoDigests)
		}
	}
	if len(listed.Images) != len(all) {
		r.T.Errorf("got %d images, want %d", len(listed.Images), len(all))
	}
	checked := 0
	for id, want := range all {
		for _, name := range []string{id, want.tag, want.digested} {
			if got := r.MustStatus(name, ""); got.GetId() != id {
				r.T.Errorf("ImageStatus %s: got %v", name, got)
			}
		}
		if checked++; checked == 10 {
			break
		}
	}
	out, code := r.Operator("images", "-o", "json")
	var listing struct {
		Keys []struct{ Ref, ImageID string }
	}
	if err := json.Unmarshal([]byte(out), &listing); code != 0 || err != nil || len(listing.Keys) != 2*len(all) {
		r.T.Errorf("imagepin images: got exit code %d and %d keys: %v\n%.500s", code, len(listing.Keys), err, out)
	}
	if out, code := r.Operator("check"); code != 0 || !strings.Contains(out, fmt.Sprintf("%d checked, 0 differ", 2*len(all))) {
		r.T.Errorf("imagepin check: got exit code %d:\n%.2000s", code, out)
	}
}

// manyImage has the references of one of many images.
type manyImage struct{ tag, digested string }

// fill writes images into the root of a node that does not run, as imagepin leaves them after pulls. They share one
// layer. fill returns them by ID.
func fill(r *testkit.Rig, count int) map[string]manyImage {
	r.T.Helper()
	root, err := offline.Open(r.Ctx, r.Path("root"))
	if err != nil {
		r.T.Fatal(err)
	}
	layer := []byte("a layer that nothing unpacks")
	base := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer), Size: int64(len(layer))}
	err = root.AtOnce(r.Ctx, func(ctx context.Context) error {
		if err := root.PutBlob(ctx, base, layer, nil); err != nil {
			return err
		}
		return root.Commit(ctx, []digest.Digest{base.Digest})
	})
	all := make(map[string]manyImage, count)
	const batch = 500 // larger transactions cost more for each image
	for from := 0; from < count && err == nil; from += batch {
		err = root.AtOnce(r.Ctx, func(ctx context.Context) error {
			for i := from; i < min(from+batch, count); i++ {
				name := fmt.Sprintf("registry.example.com/a-department-with-applications-of-its-own-%02d/a-team-that-likes-long-names-%03d/production/an-application-of-the-many-that-a-node-keeps-%05d", i%20, i%300, i)
				id, img, err := putMany(ctx, root, name, base)
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				all[id] = img
			}
			return ctx.Err()
		})
	}
	if err := errors.Join(err, root.Close()); err != nil {
		r.T.Fatal(err)
	}
	return all
}

// putMany writes one of many images and returns its ID.
func putMany(ctx context.Context, root *offline.Root, name string, base ocispec.Descriptor) (id string, _ manyImage, _ error) {
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		return "", manyImage{}, err
	}
	top := offline.ChainID([]digest.Digest{base.Digest})
	config, err := putJSON(ctx, root, ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: ocispec.Platform{OS: platform.OS, Architecture: platform.Architecture},
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{base.Digest}},
		Config:   ocispec.ImageConfig{User: "1000", Entrypoint: []string{"/" + name}},
	}, map[string]string{"containerd.io/gc.ref.snapshot." + offline.Snapshotter: top})
	if err != nil {
		return "", manyImage{}, err
	}
	manifest, err := putJSON(ctx, root, ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: []ocispec.Descriptor{base},
	}, map[string]string{"containerd.io/gc.ref.content.config": config.Digest.String(), "containerd.io/gc.ref.content.l.0": base.Digest.String()})
	if err != nil {
		return "", manyImage{}, err
	}
	img := manyImage{tag: name + ":v1", digested: name + "@" + manifest.Digest.String()}
	managed := map[string]string{"io.cri-containerd.image": "managed"}
	keys := map[string]string{"io.cri-containerd.image": "managed"}
	for _, ref := range []string{img.tag, img.digested} {
		label, value, err := imagepin.EncodeKeyLabel(imagepin.Entry{
			Key:  imagepin.Key{Ref: ref, Target: runtimeplatform.Target{Platform: images.HostPlatform(), Snapshotter: offline.Snapshotter}},
			Root: manifest, Manifest: manifest.Digest, ImageID: config.Digest, ChainID: digest.Digest(top), User: "1000",
			Size: manifest.Size + config.Size + base.Size, ReadyAt: time.Unix(1_700_000_000, 0), Source: imagepin.SourcePull, Host: "registry.example.com",
			Durable: "an earlier boot",
		})
		if err != nil {
			return "", manyImage{}, err
		}
		keys[label] = value
	}
	for record, labels := range map[string]map[string]string{img.tag: managed, img.digested: keys, config.Digest.String(): managed} {
		if _, err := root.Images.Create(ctx, ctdimages.Image{Name: record, Target: manifest, Labels: labels}); err != nil {
			return "", manyImage{}, err
		}
	}
	return config.Digest.String(), img, nil
}

func putJSON(ctx context.Context, root *offline.Root, mediaType string, v any, labels map[string]string) (ocispec.Descriptor, error) {
	var data bytes.Buffer
	if err := json.NewEncoder(&data).Encode(v); err != nil {
		return ocispec.Descriptor{}, err
	}
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data.Bytes()), Size: int64(data.Len())}
	return d, root.PutBlob(ctx, d, data.Bytes(), labels)
}
