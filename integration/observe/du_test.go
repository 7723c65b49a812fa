package observe

import (
	"slices"
	"testing"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDiskUsage checks that the removal of an image frees what du shows as unique to it, in the content store and in each
// snapshotter, and that what images share counts once.
func TestDiskUsage(t *testing.T) {
	t.Parallel()
	testDiskUsage(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets})
}

// TestDiskUsageOfDiscardedLayers is TestDiskUsage on a node whose content store has no layers.
func TestDiskUsageOfDiscardedLayers(t *testing.T) {
	t.Parallel()
	testDiskUsage(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets, DiscardUnpackedLayers: true})
}

func testDiskUsage(t *testing.T, opts node.Options) {
	const common, own = 512 << 10, 64 << 10
	r := testkit.NewRig(t, opts)
	push := func(ref string, seed uint64) string {
		t.Helper()
		ref, _ = r.PushImage(ref, testkit.App(t, images.Options{Random: []images.Random{{Size: common, Seed: 1}, {Size: own, Seed: seed}}}))
		return ref
	}
	first, second := push("du/first:v1", 2), push("du/second:v1", 3)
	r.MustPull(first, "")
	r.Collect() // layers that containerd discards
	alone := diskUsage(r, "")
	if len(alone.Images) != 1 || alone.Images[0].Shared != 0 || alone.Images[0].Unique != total(alone) {
		t.Errorf("with one image: got %v", alone)
	}
	r.MustPull(second, "")
	r.MustPull(second, "native")
	r.Collect()

	both := diskUsage(r, "")
	if len(both.Images) != 2 || both.Images[0].Refs[0] != second || both.Images[1].Refs[0] != first {
		t.Fatalf("got images %v, want %s and %s", both.Images, second, first)
	}
	for i, snapshotters := range [][]string{{"native", "overlayfs"}, {"overlayfs"}} {
		img := both.Images[i]
		size, names := img.Content, []string(nil)
		for _, u := range img.Unpacked {
			size += u.Size
			names = append(names, u.Snapshotter)
			if u.Unknown || u.Size < common+own {
				t.Errorf("%s: got %v, want at least the size of its random layers", img.Refs[0], u)
			}
		}
		if !slices.Equal(names, snapshotters) || img.Unique+img.Shared != size || img.Unique < own || img.Shared < common {
			t.Errorf("%s: got %v, want snapshots in %q", img.Refs[0], img, snapshotters)
		}
		if layers := img.Content > common; layers == opts.DiscardUnpackedLayers {
			t.Errorf("%s: its content has %d bytes", img.Refs[0], img.Content)
		}
	}
	if both.GetOtherContent().GetSize() != 0 {
		t.Errorf("got other content %v", both.OtherContent)
	}
	for _, sn := range both.Snapshotters {
		if sn.Error != "" || sn.Snapshots == 0 || sn.Size < common {
			t.Errorf("got %v", sn)
		}
	}
	if some := diskUsage(r, first); len(some.Images) != 1 || some.Images[0].Unique != both.Images[1].Unique || total(some) != total(both) {
		t.Errorf("only %s: got %v", first, some)
	}
	if out, code := r.Operator("du"); code != 0 {
		t.Errorf("imagepin du: exit code %d\n%s", code, out)
	}

	if out, code := r.Operator("rm", second); code != 0 {
		t.Fatalf("imagepin rm: exit code %d\n%s", code, out)
	}
	r.Collect()
	after := diskUsage(r, "")
	if freed := total(both) - total(after); freed != both.Images[0].Unique {
		t.Errorf("the removal of %s has freed %d bytes, want the %d that were unique to it", second, freed, both.Images[0].Unique)
	}
	if len(after.Images) != 1 || after.Images[0].Shared != 0 || total(after) != total(alone) {
		t.Errorf("after the removal: got %v, want %v", after, alone)
	}
}

func diskUsage(r *testkit.Rig, glob string) *api.DiskUsageResponse {
	r.T.Helper()
	stream, err := r.Control().DiskUsage(r.Ctx, &api.DiskUsageRequest{RefGlob: glob})
	if err != nil {
		r.T.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		r.T.Fatal(err)
	}
	if more, err := stream.Recv(); err == nil {
		first.Images = more.Images
	}
	return first
}

// total returns the disk space of all images and of other content.
func total(u *api.DiskUsageResponse) int64 {
	sum := u.GetContent().GetSize() + u.GetOtherContent().GetSize()
	for _, sn := range u.GetSnapshotters() {
		sum += sn.GetSize()
	}
	return sum
}
