package remove

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestDiskUsageOfFaultySnapshotter checks that du reports a snapshotter that hangs or fails, has the sizes of the others, and
// keeps no call waiting that does not need that snapshotter.
func TestDiskUsageOfFaultySnapshotter(t *testing.T) {
	t.Parallel()
	r, m := newProxyRig(t)
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	r.MustPull(tag, "remote")
	r.MustPull(tag, "")
	healthy := usageOf(r, tag)
	if len(healthy.Snapshotters) != 2 || healthy.Snapshotters[1].Snapshotter != "remote" || healthy.Snapshotters[1].Error != "" || healthy.Snapshotters[1].Size == 0 {
		t.Fatalf("got %v", healthy.Snapshotters)
	}
	for want, fault := range map[string]func(context.Context) error{
		"no answer within 2s": m.hang,
		"on fire":             func(context.Context) error { return errors.New("the disk array is on fire") },
	} {
		m.setFault(fault)
		done := make(chan *api.DiskUsageResponse, 1)
		began := time.Now()
		go func() { done <- usageOf(r, tag) }()
		if want != "on fire" {
			<-m.hung
			other, _ := r.Push("other:v1", images.Options{Version: "other"}, images.HostPlatform())
			r.MustPull(other, "")
			r.MustRemove(other, "")
		}
		u := <-done
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: du took %s", want, took)
		}
		if sn := u.Snapshotters[1]; !strings.Contains(sn.Error, want) || sn.Size != 0 {
			t.Errorf("got %v, want %q", sn, want)
		}
		if sn := u.Snapshotters[0]; sn.Error != "" || sn.Size < healthy.Snapshotters[0].Size {
			t.Errorf("%s: got %v, want %v", want, sn, healthy.Snapshotters[0])
		}
		if img := u.Images[0]; !img.Unpacked[1].Unknown || img.Unpacked[0].Unknown || img.Unpacked[0].Size != healthy.Images[0].Unpacked[0].Size {
			t.Errorf("%s: got %v", want, img)
		}
		out, code := r.Operator("du", "--ref", tag)
		if code != 1 || !strings.Contains(out, "unknown: ") || !strings.Contains(out, "  >") {
			t.Errorf("%s: exit code %d\n%s", want, code, out)
		}
	}
	m.setFault(nil)
	if u := usageOf(r, tag); u.Snapshotters[1].Error != "" || u.Snapshotters[1].Size != healthy.Snapshotters[1].Size {
		t.Errorf("after the faults: got %v, want %v", u.Snapshotters, healthy.Snapshotters)
	}
}

// usageOf returns the disk usage, with the image of a reference only. It can be called in any goroutine.
func usageOf(r *testkit.Rig, ref string) *api.DiskUsageResponse {
	all := &api.DiskUsageResponse{}
	stream, err := r.Control().DiskUsage(r.Ctx, &api.DiskUsageRequest{RefGlob: ref})
	for err == nil {
		var piece *api.DiskUsageResponse
		if piece, err = stream.Recv(); err == nil {
			all.Images = append(all.Images, piece.Images...)
			all.Snapshotters = append(all.Snapshotters, piece.Snapshotters...)
		}
	}
	if !errors.Is(err, io.EOF) {
		r.T.Error(err)
	}
	return all
}
