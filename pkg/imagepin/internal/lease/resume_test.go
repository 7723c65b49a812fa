package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

var errPull = errors.New("the pull failed")

// fetched writes a blob, and a part of another one, as a pull.
func fetched(t *testing.T, n *ctdtest.Node, blob, part string) func(context.Context) error {
	return func(ctx context.Context) error {
		for _, text := range []string{blob, part} {
			desc := ocispec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
			w, err := n.Content.Writer(ctx, content.WithRef(text), content.WithDescriptor(desc))
			if err != nil {
				return err
			}
			if _, err := w.Write([]byte(text)); err != nil {
				return err
			}
			if text == blob {
				if err := w.Commit(ctx, desc.Size, desc.Digest); err != nil {
					return err
				}
			}
			if err := w.Close(); err != nil {
				return err
			}
		}
		return errPull
	}
}

// underLease returns a context with a lease that holds nothing.
func underLease(t *testing.T, n *ctdtest.Node) context.Context {
	t.Helper()
	ctx, done := n.Lease(t)
	t.Cleanup(done)
	return ctx
}

func always(error) bool { return true }

func writes(t *testing.T, n *ctdtest.Node) int {
	t.Helper()
	all, err := n.Content.ListStatuses(n.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func keptOf(t *testing.T, n *ctdtest.Node, r *Resumes) Kept {
	t.Helper()
	kept, err := r.Kept(n.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

// TestResumes keeps what a failed pull has fetched, and frees it.
func TestResumes(t *testing.T) {
	n := ctdtest.New(t)
	r, ctx := NewResumes(n.Leases, n.Content), n.Context(t)
	kept, err := r.With(ctx, fetched(t, n, "blob", "part"), func(error) bool { return false })
	if n.Collect(t); kept || !errors.Is(err, errPull) || n.HasBlob(t, digest.FromString("blob")) || writes(t, n) != 0 {
		t.Errorf("got %t, %v, want that nothing is kept", kept, err)
	}
	canceled, cancel := context.WithCancel(ctx)
	kept, err = r.With(canceled, func(ctx context.Context) error {
		err := fetched(t, n, "blob", "part")(ctx)
		cancel()
		return err
	}, always)
	n.Collect(t)
	if got := keptOf(t, n, r); !kept || !errors.Is(err, errPull) || len(got.Blobs) != 1 || got.Writes != 1 || got.Written != 4 {
		t.Errorf("got %t, %v and %+v, want a blob and 4 bytes of another one", kept, err, got)
	}
	all, err := n.Leases.List(ctx)
	if err != nil || len(all) != 1 || all[0].Labels[upstream.ExpireLabel] == "" {
		t.Errorf("got leases %+v, %v, want one that expires", all, err)
	}
	if freed, err := r.FreeOf(underLease(t, n), digest.FromString("other")); freed || err != nil {
		t.Errorf("got %t, %v, want that nothing is freed", freed, err)
	}
	if freed, err := r.FreeOf(underLease(t, n), digest.FromString("blob")); !freed || err != nil {
		t.Errorf("got %t, %v, want that the blob is freed", freed, err)
	}
	if n.Collect(t); n.HasBlob(t, digest.FromString("blob")) || writes(t, n) != 0 {
		t.Error("the content of the failed pull is not collected")
	}
	if _, err := r.With(ctx, fetched(t, n, "blob", "part"), always); !errors.Is(err, errPull) {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if freed, err := r.Free(ctx); freed != want || err != nil {
			t.Errorf("got %t, %v, want %t", freed, err, want)
		}
	}
}

// TestResumesAreBounded lets pulls fail until too much is kept. The oldest is freed first. A pull that fails again replaces what it
// has kept before.
func TestResumesAreBounded(t *testing.T) {
	n := ctdtest.New(t)
	r, ctx := NewResumes(n.Leases, n.Content), n.Context(t)
	r.max = 24
	for i := range 4 {
		for range 2 {
			if _, err := r.With(ctx, fetchedAgain(t, n, fmt.Sprint("blob", i), fmt.Sprint("part", i)), always); !errors.Is(err, errPull) {
				t.Fatal(err)
			}
		}
		all, err := r.list(ctx)
		if want := min(i+1, 2); err != nil || len(all) != want {
			t.Fatalf("after pull %d: got %d leases, %v, want %d", i, len(all), err, want)
		}
	}
	n.Collect(t)
	for i := range 4 {
		if has, want := n.HasBlob(t, digest.FromString(fmt.Sprint("blob", i))), i >= 2; has != want {
			t.Errorf("blob%d is on the node: %t", i, has)
		}
	}
}

// fetchedAgain is fetched, for a pull that may have been done before.
func fetchedAgain(t *testing.T, n *ctdtest.Node, blob, part string) func(context.Context) error {
	return func(ctx context.Context) error {
		if n.HasBlob(t, digest.FromString(blob)) {
			id, _ := leases.FromContext(ctx)
			for kind, name := range map[string]string{upstream.ContentType: digest.FromString(blob).String(), upstream.IngestType: part} {
				if err := n.Leases.AddResource(ctx, leases.Lease{ID: id}, leases.Resource{Type: kind, ID: name}); err != nil {
					return err
				}
			}
			return errPull
		}
		return fetched(t, n, blob, part)(ctx)
	}
}

// TestKeepLeftovers starts after pulls were killed: in this boot, and in an earlier one. Of the latter, only complete blobs are kept.
// Nothing is kept of what is not a pull from a registry.
func TestKeepLeftovers(t *testing.T) {
	n := ctdtest.New(t)
	r, ctx := NewResumes(n.Leases, n.Content), n.Context(t)
	for name, labels := range map[string]map[string]string{
		"now":     {imagepin.LeaseLabel: string(Pull), bootLabel: r.boot},
		"before":  {imagepin.LeaseLabel: string(Pull), bootLabel: "an earlier boot"},
		"failed":  {imagepin.LeaseLabel: string(Resume), bootLabel: "an earlier boot"},
		"applied": {imagepin.LeaseLabel: string(Pull)},
	} {
		opts := []leases.Opt{leases.WithID(name), leases.WithLabels(labels)}
		if name == "failed" {
			opts = append(opts, leases.WithExpiration(ResumeExpiration))
		}
		if _, err := n.Leases.Create(ctx, opts...); err != nil {
			t.Fatal(err)
		}
		if err := fetched(t, n, "blob "+name, "part "+name)(leases.WithLease(ctx, name)); !errors.Is(err, errPull) {
			t.Fatal(err)
		}
	}
	for range 2 { // a start that is killed is repeated
		if err := r.KeepLeftovers(ctx, n.Images); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := DeleteLeftovers(ctx, n.Leases); err != nil {
		t.Fatal(err)
	}
	n.Collect(t)
	for name, want := range map[string]bool{"now": true, "before": true, "failed": true, "applied": false} {
		if got := n.HasBlob(t, digest.FromString("blob "+name)); got != want {
			t.Errorf("%s: the blob is kept: %t", name, got)
		}
	}
	all, err := n.Content.ListStatuses(ctx)
	if err != nil || len(all) != 1 || all[0].Ref != "part now" {
		t.Errorf("got writes %+v, %v, want that of this boot", all, err)
	}
	if err := r.KeepLeftovers(ctx, n.Images); err != nil {
		t.Error(err)
	}
	if got := keptOf(t, n, r); len(got.Blobs) != 3 || got.Writes != 1 {
		t.Errorf("got %+v, want 3 blobs and a write", got)
	}
}

// TestResumesExpire lets a lease expire. It is deleted, which starts a collection.
func TestResumesExpire(t *testing.T) {
	n := ctdtest.New(t)
	r, ctx := NewResumes(n.Leases, n.Content), n.Context(t)
	for name, in := range map[string]time.Duration{"before": -time.Hour, "now": time.Second} { // an expiry is in seconds
		if _, err := n.Leases.Create(ctx, leases.WithID(name), leases.WithExpiration(in), leases.WithLabel(imagepin.LeaseLabel, string(Resume))); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Expire(ctx); err != nil {
		t.Fatal(err)
	}
	if all, err := n.Leases.List(ctx); err != nil || len(all) != 0 {
		t.Errorf("got leases %+v, %v, want none", all, err)
	}
	if _, err := n.Leases.Create(ctx, leases.WithID("later"), leases.WithExpiration(time.Hour), leases.WithLabel(imagepin.LeaseLabel, string(Resume))); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.Expire(ended); err != nil {
		t.Error(err)
	}
	if all, err := n.Leases.List(ctx); err != nil || len(all) != 1 {
		t.Errorf("got leases %+v, %v, want one", all, err)
	}
}

// TestNothingIsKeptOfARecordedImage starts after a pull was killed that had recorded its image, and before its lease was deleted.
func TestNothingIsKeptOfARecordedImage(t *testing.T) {
	n := ctdtest.New(t, "first")
	r, ctx, all := NewResumes(n.Leases, n.Content), n.Context(t), ctdtest.Blobs{}
	img := all.Image("linux/amd64", "a", nil)
	for _, name := range []string{"recorded", "not recorded"} {
		id := strings.ReplaceAll(name, " ", "-")
		if _, err := n.Leases.Create(ctx, leases.WithID(id), leases.WithLabels(map[string]string{imagepin.LeaseLabel: string(Pull), bootLabel: r.boot})); err != nil {
			t.Fatal(err)
		}
		leased := leases.WithLease(ctx, id)
		if name == "recorded" {
			n.Write(leased, t, all)
			n.Keep(leased, t, img, nil)
			if _, err := n.Images.Create(ctx, images.Image{Name: "a", Target: img.Manifest}); err != nil {
				t.Fatal(err)
			}
		} else if err := fetched(t, n, "blob", "part")(leased); !errors.Is(err, errPull) {
			t.Fatal(err)
		}
	}
	if err := r.KeepLeftovers(ctx, n.Images); err != nil {
		t.Fatal(err)
	}
	if got := keptOf(t, n, r); len(got.Blobs) != 1 || got.Writes != 1 {
		t.Errorf("got %+v, want what has no record", got)
	}
}

// TestFreeOfWhatIsReady frees what a failed pull has fetched that did not come to the manifest, when the lease of a pull has it.
func TestFreeOfWhatIsReady(t *testing.T) {
	n := ctdtest.New(t)
	r, ctx := NewResumes(n.Leases, n.Content), n.Context(t)
	if _, err := r.With(ctx, fetched(t, n, "index", "part"), always); !errors.Is(err, errPull) {
		t.Fatal(err)
	}
	ready := underLease(t, n)
	id, _ := leases.FromContext(ready)
	if err := n.Leases.AddResource(ctx, leases.Lease{ID: id}, leases.Resource{Type: upstream.ContentType, ID: digest.FromString("index").String()}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} { // while a write has bytes, and when it is complete
		if freed, err := r.FreeOf(ready, digest.FromString("manifest")); freed != want || err != nil {
			t.Errorf("got %t, %v, want %t", freed, err, want)
		}
		if !want {
			if err := n.Content.Abort(ctx, "part"); err != nil {
				t.Fatal(err)
			}
		}
	}
}
