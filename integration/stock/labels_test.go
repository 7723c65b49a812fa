package stock

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLabelsOfGarbageCollection labels an image record and content as other clients of containerd do. The garbage collection does what the
// labels say, and the CRI follows it.
func TestLabelsOfGarbageCollection(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := testkit.NewRig(t, node.Options{Binary: binary, NoPods: true})
		tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
		id := r.MustPull(tag, "")
		root := writeBlob(t, r, r.Ctx, "root", map[string]string{"containerd.io/gc.root": "now"})
		leased, release, err := r.Client().WithLease(testkit.NSContext(r.Ctx)) // a garbage collection can run before the label is there
		if err != nil {
			t.Fatal(err)
		}
		referenced := writeBlob(t, r, leased, "referenced", nil)
		testkit.LabelImage(t, r.Node, tag, "containerd.io/gc.ref.content.example", referenced.String())
		if err := release(leased); err != nil {
			t.Fatal(err)
		}
		if binary == node.Ours { // a pull of stock removes labels of others
			r.MustPull(tag, "")
		}
		r.Collect()
		wantBlob(t, r, "a label of the content", root, true)
		wantBlob(t, r, "a label of the image record", referenced, true)

		testkit.LabelImage(t, r.Node, tag, "containerd.io/gc.expire", time.Now().Add(-time.Hour).Format(time.RFC3339))
		r.Collect()
		r.Eventually("the expired reference is gone", func() bool {
			img := r.Listed()[id]
			return r.MustStatus(tag, "") == nil && img != nil && len(img.GetRepoTags()) == 0 && len(img.GetRepoDigests()) == 1
		})
		r.Collect()
		wantBlob(t, r, "a label of the content", root, true)
		wantBlob(t, r, "the record with the label is gone", referenced, false)
	})
}

// writeBlob writes content with labels, and returns its digest. Without labels, only a reference or the lease of ctx keeps it in the
// next garbage collection.
func writeBlob(t *testing.T, r *testkit.Rig, ctx context.Context, data string, labels map[string]string) digest.Digest {
	t.Helper()
	desc := v1.Descriptor{Digest: digest.FromString(data), Size: int64(len(data))}
	err := content.WriteBlob(testkit.NSContext(ctx), r.Client().ContentStore(), data, strings.NewReader(data), desc, content.WithLabels(labels))
	if err != nil {
		t.Fatal(err)
	}
	return desc.Digest
}

func wantBlob(t *testing.T, r *testkit.Rig, what string, d digest.Digest, want bool) {
	t.Helper()
	_, err := r.Client().ContentStore().Info(testkit.NSContext(r.Ctx), d)
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if got := err == nil; got != want {
		t.Errorf("%s: content %s is there: %t, want %t", what, d, got, want)
	}
}

// TestKindLoad imports an image as kind does, which also creates a name for the digest. Without a registry, pods run it by tag and by ID.
func TestKindLoad(t *testing.T) {
	testkit.OnBoth(t, func(t *testing.T, binary string) {
		t.Parallel()
		r := testkit.NewRig(t, node.Options{Binary: binary})
		opts := images.Options{}
		tag, _ := r.Push("app:v1", opts, images.HostPlatform(), testkit.Foreign)
		archive := r.Path("app.tar")
		for _, args := range [][]string{
			{"images", "pull", "--local", "--plain-http", "--all-platforms", tag},
			{"images", "export", "--local", "--all-platforms", archive, tag}, // without --local, ctr can end before the file is complete,
			{"images", "rm", "--sync", tag},
			{"images", "import", "--all-platforms", "--digests", "--snapshotter=overlayfs", archive},
		} {
			if out, err := r.Ctr(r.Ctx, args...); err != nil {
				t.Fatalf("ctr %q: %v: %s", args, err, out)
			}
		}
		pod := r.MustPod("")
		r.Reg.Down()
		r.Eventually("the image is listed", func() bool { return r.MustStatus(tag, "") != nil })
		for _, name := range []string{tag, r.MustStatus(tag, "").GetId()} {
			if _, line, err := r.RunContainer(r.Ctx, pod, node.ContainerOptions{Image: name}); err != nil || line != opts.Line(0) {
				t.Errorf("%s: got %q, %v", name, line, err)
			}
		}
	})
}
