package cri

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

func testRef(i int) string { return fmt.Sprintf("registry.example/team/app%d:1", i) }

// newTestService returns a service of a node with count images. Each image has a tag and a digest, and no content,
// because listing does not read it.
func newTestService(t testing.TB, count int) *Service {
	t.Helper()
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	s := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	})
	var all []imagepin.Entry
	for i := range count {
		root := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(fmt.Sprint("index ", i)), Size: 1}
		record := fmt.Sprintf("registry.example/team/app%d@%s", i, root.Digest)
		for _, ref := range []string{record, testRef(i)} {
			all = append(all, imagepin.Entry{
				Key:  imagepin.Key{Ref: ref, Target: runtimes.Default().Target},
				Root: root, Manifest: digest.FromString(fmt.Sprint("manifest ", i)), ImageID: digest.FromString(fmt.Sprint("config ", i)),
				ReadyAt: time.Unix(1_700_000_000, 0), Source: imagepin.SourcePull, User: "1000", Record: record, RecordTarget: root,
			})
		}
	}
	// Write in batches: a transaction gets slower as it grows.
	for batch := range slices.Chunk(all, 200) {
		err := n.DB.Update(func(tx *bolt.Tx) error {
			_, err := s.Put(boltutil.WithTransaction(n.Context(t), tx), "", batch...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pins := pin.New(pin.Config{})
	return New(Config{
		Namespace: ctdtest.Namespace, Store: s, Pins: pins, Decider: decide.New(decide.Config{Policy: ctdtest.Always(rules), Pins: pins}), Runtimes: ctdtest.Always(runtimes), Settings: ctdtest.Always(&Settings{}),
	})
}

func filterOf(i int) *runtime.ImageFilter {
	return &runtime.ImageFilter{Image: &runtime.ImageSpec{Image: testRef(i)}}
}

func statusOf(t testing.TB, s *Service, i int) func() {
	ctx := t.Context()
	r := &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: testRef(i)}}
	return func() {
		resp, err := s.imageCalls.imageStatus(ctx, r, nil)
		if err != nil || resp.GetImage() == nil {
			t.Fatalf("ImageStatus returns %v, %v, want an image", resp, err)
		}
	}
}

func listOf(t testing.TB, s *Service, filter *runtime.ImageFilter, want int) func() {
	return func() {
		if got := len(s.imageCalls.list(filter)); got != want {
			t.Fatalf("listed %d images, want %d", got, want)
		}
	}
}

// TestListImagesAllocations checks that a list allocates a constant amount for each image that it returns, and nothing
// for other images.
func TestListImagesAllocations(t *testing.T) {
	// The race detector drops pool entries at random, which costs a few more allocations.
	const (
		runs  = 20
		slack = 10
	)
	counts := []int{10, 100, 1_000}
	var all, filtered, status []float64
	for _, count := range counts {
		s := newTestService(t, count)
		all = append(all, testing.AllocsPerRun(runs, listOf(t, s, nil, count)))
		filtered = append(filtered, testing.AllocsPerRun(runs, listOf(t, s, filterOf(count/2), 1)))
		status = append(status, testing.AllocsPerRun(runs, statusOf(t, s, count/2)))
	}
	t.Logf("allocations with %d images: all %v, one by a filter %v, ImageStatus %v", counts, all, filtered, status)
	each := all[0] / float64(counts[0])
	for i, count := range counts {
		if most := each*float64(count) + slack; all[i] > most {
			t.Errorf("list of %d images: got %v allocations, want at most %v (%v for %d images)", count, all[i], most, all[0], counts[0])
		}
		if filtered[i] > filtered[0]+slack {
			t.Errorf("list of one of %d images: got %v allocations (one of %d images: %v)", count, filtered[i], counts[0], filtered[0])
		}
		if status[i] > status[0]+slack {
			t.Errorf("ImageStatus with %d images: got %v allocations (%d images: %v)", count, status[i], counts[0], status[0])
		}
	}
}

func BenchmarkListImages(b *testing.B) {
	for _, count := range []int{10, 1_000, 10_000} {
		s := newTestService(b, count)
		for what, call := range map[string]func(){"all": listOf(b, s, nil, count), "one": listOf(b, s, filterOf(count/2), 1)} {
			b.Run(fmt.Sprintf("%s/%d", what, count), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					call()
				}
			})
		}
	}
}

func BenchmarkImageStatus(b *testing.B) {
	for _, count := range []int{10, 1_000, 10_000} {
		call := statusOf(b, newTestService(b, count), count/2)
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				call()
			}
		})
	}
}
