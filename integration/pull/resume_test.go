package pull

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestResume interrupts a pull in different ways when all but a MiB of a layer is on the node: 3 MiB, or so much that containerd
// does not open the write again. The next pull fetches exactly the rest,
// for the same target or for another one, unless it was freed by "imagepin prune". The failed pull leaves no image, no snapshot and no pin, and what it leaves expires.
func TestResume(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	for i, test := range []struct {
		name      string
		next      string // handler of the next pull
		cut       bool
		pruned    bool // before the next pull
		size      int64
		interrupt func(r *testkit.Rig, cancel func()) error
	}{
		{name: "cancel", interrupt: func(_ *testkit.Rig, cancel func()) error { cancel(); return nil }},
		{name: "another target", next: "native", interrupt: func(_ *testkit.Rig, cancel func()) error { cancel(); return nil }},
		{name: "prune", pruned: true, interrupt: func(_ *testkit.Rig, cancel func()) error { cancel(); return nil }},
		{name: "cut connection", cut: true},
		{name: "restart", interrupt: func(r *testkit.Rig, _ func()) error { return r.Restart(r.Ctx, nil) }},
		{name: "kill", size: 18 << 20, interrupt: func(r *testkit.Rig, _ func()) error {
			if err := r.Crash(); err != nil {
				return err
			}
			return r.Start(r.Ctx)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := r.In(t)
			arrived := max(test.size, 4<<20) - 1<<20
			repo := fmt.Sprintf("resume-%d:v1", i)
			app := testkit.App(t, images.Options{Random: []images.Random{{Size: arrived + 1<<20, Seed: uint64(i)}}, Compression: images.Uncompressed})
			testkit.Push(t, r.Reg, repo, app)
			layer, size := largest(t, app)
			ofLayer := func(q registry.Request) bool { return q.Method == "GET" && q.Reference == layer }
			ctx, cancel := context.WithCancel(r.Ctx)
			defer cancel()
			before := r.MustState()
			never := make(chan struct{})
			defer close(never)
			r.Reg.SetFault(func(q registry.Request) *registry.Fault {
				switch {
				case !ofLayer(q):
					return nil
				case q.Range != "":
					return &registry.Fault{Abort: true}
				case test.cut:
					return &registry.Fault{After: arrived, Truncate: true}
				}
				return &registry.Fault{After: arrived, Hang: never}
			})
			failed := make(chan error, 1)
			go func() {
				_, err := r.Pull(ctx, r.Reg.Ref(repo), "")
				failed <- err
			}()
			if test.interrupt != nil {
				r.Eventually("a part of the layer arrives", func() bool {
					for _, ingest := range r.MustState().Ingests {
						if ingest.Offset == arrived {
							return true
						}
					}
					return false
				})
				if err := test.interrupt(r, cancel); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-failed; err == nil {
				t.Fatal("the pull succeeded")
			}
			testkit.AwaitIdle(t, r.Reg)
			r.Eventually("nothing is left but what the next pull needs", func() bool { return node.Diff(before, r.MustState()) == "" })
			r.Collect()
			resumed := r.MustState()
			if d := node.Diff(before, resumed); d != "" {
				t.Errorf("the failed pull left:\n%s", d)
			}
			checkExpires(t, resumed)
			if out, _ := r.Operator("du"); !strings.Contains(out, "of failed pulls") {
				t.Errorf("du does not list what is kept:\n%s", out)
			}
			if test.pruned {
				if out, code := r.Operator("prune", "--yes"); code != 0 || len(r.MustState().Resumed()) > 0 {
					t.Errorf("prune: exit code %d, something is still kept:\n%s", code, out)
				}
			}
			r.Reg.SetFault(nil)
			next := r.Reg.Later()
			r.MustPull(r.Reg.Ref(repo), test.next)
			testkit.AwaitIdle(t, r.Reg)
			var sent int64
			for _, q := range r.Reg.Requests() {
				if ofLayer(q) && next(q) {
					sent += q.Bytes
				}
			}
			want := size - arrived
			if test.pruned {
				want = size
			}
			if sent != want {
				t.Errorf("the next pull got %d bytes of the layer, want %d\n%s", sent, want, r.Reg.Dump())
			}
			r.Eventually("nothing is kept for a next pull", func() bool { return len(r.MustState().Resumed()) == 0 })
		})
	}
}

// largest returns the digest and the size of the largest layer of an image.
func largest(t *testing.T, img v1.Image) (digest string, size int64) {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		n, err := l.Size()
		if err != nil {
			t.Fatal(err)
		}
		if n > size {
			d, err := l.Digest()
			if err != nil {
				t.Fatal(err)
			}
			digest, size = d.String(), n
		}
	}
	return digest, size
}

// checkExpires checks that something is kept, and that it is free after a day.
func checkExpires(t *testing.T, s *node.State) {
	t.Helper()
	if len(s.Resumed()) == 0 {
		t.Error("nothing is kept for the next pull")
	}
	for id, l := range s.Leases {
		at, err := time.Parse(time.RFC3339, l.Labels["containerd.io/gc.expire"])
		if err != nil || time.Until(at) > 24*time.Hour {
			t.Errorf("lease %s does not expire within a day: %v", id, l.Labels)
		}
	}
}
