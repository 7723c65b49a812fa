package pull

import (
	"context"
	"maps"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// TestBlobsAreWrittenWithTheirSource fetches a blob, and then has containerd set the label of its source, which it does for all blobs of
// a pull: the blob has that label already, so nothing is written.
func TestBlobsAreWrittenWithTheirSource(t *testing.T) {
	t.Parallel()
	for _, ref := range []string{"registry.example/team/app:1", "127.0.0.1:5000/app:1", "docker.io/library/app@" + digest.FromString("app").String()} {
		n := ctdtest.New(t)
		ctx, done := n.Lease(t)
		defer done()
		updates := 0
		cs := blobs.WithoutEqualUpdates(ctdtest.Content{Store: n.Content, Before: ctdtest.On("Update", func(string) error {
			updates++
			return nil
		})})
		src := &source{repository: "registry.example/app", labels: distributionSource(ref)}
		data := []byte("a blob")
		desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(data), Size: int64(len(data))}
		if _, err := fetchFrom(ctx, src.ingests(cs), desc, data, 0, nil); err != nil {
			t.Fatal(err)
		}
		written, err := cs.Info(ctx, desc.Digest)
		if err != nil {
			t.Fatal(err)
		}
		label, err := docker.AppendDistributionSourceLabel(cs, ref)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := label(ctx, desc); err != nil {
			t.Fatal(err)
		}
		now, err := cs.Info(ctx, desc.Digest)
		if err != nil || len(now.Labels) != 1 || !maps.Equal(now.Labels, written.Labels) || updates != 0 {
			t.Errorf("%s: got the labels %v, and %d updates to %v, %v", ref, written.Labels, updates, now.Labels, err)
		}
	}
	if got := distributionSource(""); got != nil {
		t.Errorf("got the labels %v of no reference", got)
	}
}

// TestCommitKeepsItsLabels checks that the labels of a write are added to those that it is committed with.
func TestCommitKeepsItsLabels(t *testing.T) {
	t.Parallel()
	given := map[string]string{"a": "given", "b": "given"}
	for _, c := range []struct{ added, want map[string]string }{
		{nil, given},
		{map[string]string{"b": "added", "c": "added"}, map[string]string{"a": "given", "b": "given", "c": "added"}},
	} {
		info := content.Info{Labels: maps.Clone(given)}
		if err := withLabels(c.added)(&info); err != nil || !maps.Equal(info.Labels, c.want) {
			t.Errorf("%v: got %v, %v, want %v", c.added, info.Labels, err, c.want)
		}
	}
}

// TestLeasedBlobIsNotLeasedAgain fetches a blob of the node several times. The first fetch under a lease adds it to the lease, and the next
// ones write nothing. If the blob was removed meanwhile, it is fetched and leased again.
func TestLeasedBlobIsNotLeasedAgain(t *testing.T) {
	t.Parallel()
	n := ctdtest.New(t)
	data := []byte("a blob")
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(data), Size: int64(len(data))}
	kept, release := n.Lease(t)
	writers := 0
	cs := ctdtest.Content{Store: n.Content, Before: ctdtest.On("Writer", func(string) error {
		writers++
		return nil
	})}
	fetch := func(ctx context.Context, when string, src *source, want, bytes int) {
		t.Helper()
		before := writers
		received, err := fetchFrom(ctx, src.ingests(cs), desc, data, 0, nil)
		if err != nil && !errdefs.IsAlreadyExists(err) || writers-before != want || received != bytes {
			t.Errorf("%s: got %d writers and %d bytes, %v, want %d and %d", when, writers-before, received, err, want, bytes)
		}
	}
	src := &source{repository: "registry.example/app"}
	fetch(kept, "the first lease", src, 1, len(data))
	fetch(kept, "the first lease again", src, 0, 0)

	ctx, done := n.Lease(t)
	defer done()
	fetch(ctx, "another lease", src, 1, 0)
	fetch(ctx, "another lease again", src, 0, 0)
	fetch(n.Context(t), "without a lease", src, 1, 0)
	fetch(n.Context(t), "without a lease again", src, 1, 0)
	release()
	n.Collect(t)
	if !n.HasBlob(t, desc.Digest) {
		t.Error("the blob was collected, the second lease does not have it")
	}
	if err := n.Content.Delete(ctx, desc.Digest); err != nil {
		t.Fatal(err)
	}
	n.Collect(t)
	fetch(ctx, "after it was removed", src, 1, len(data))
	n.Collect(t)
	if !n.HasBlob(t, desc.Digest) {
		t.Error("the blob that was fetched again was collected")
	}
}
