package pull

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// pullSlowly pulls an image with one layer of 100 MiB, whose connection stops within the bytes that imagepin measures, for
// several times as long as the node needed until there. So the connection is the limit, however slow the machine is. It
// returns the requests for the layer. fault, if not nil, is what the registry does with requests for ranges of the layer,
// which it has got n of before.
func pullSlowly(r *testkit.Rig, reg *registry.Registry, repo string, img images.Options, fault func(n int32) *registry.Fault) []registry.Request {
	r.T.Helper()
	const stops = 20 << 20 // bytes
	app := testkit.App(r.T, img)
	testkit.Push(r.T, reg, repo, app)
	layers, err := app.Layers()
	if err != nil {
		r.T.Fatal(err)
	}
	layer, err := layers[len(layers)-1].Digest()
	if err != nil {
		r.T.Fatal(err)
	}
	resume := make(chan struct{})
	var ranges atomic.Int32
	reg.SetFault(func(q registry.Request) *registry.Fault {
		switch {
		case q.Reference != layer.String():
			return nil
		case q.Range == "":
			return &registry.Fault{Hang: resume, After: stops}
		case fault == nil:
			return nil
		}
		return fault(ranges.Add(1) - 1)
	})
	pulled := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := r.Pull(r.Ctx, reg.Ref(repo), "")
		pulled <- err
	}()
	r.Eventually("the connection stops", func() bool {
		for _, i := range r.MustState().Ingests {
			if i.Offset >= stops {
				return true
			}
		}
		return false
	})
	time.Sleep(5 * time.Since(start)) // the measured time
	close(resume)
	if err := <-pulled; err != nil {
		r.T.Fatalf("%v\n%s", err, reg.Dump())
	}
	return slices.DeleteFunc(reg.Requests(), func(q registry.Request) bool { return q.Kind != registry.Blob || q.Reference != layer.String() })
}

// largeLayer are the options of an image with one layer of 100 MiB, which is different for each seed.
func largeLayer(seed int) images.Options {
	return images.Options{Random: []images.Random{{Size: 100 << 20, Seed: uint64(seed)}}, Compression: images.Uncompressed}
}

// TestRangesNotServed pulls a large layer from registries that announce ranges and do not serve them. The pull succeeds,
// with the requests that the fault costs, and the next pull from that registry asks for no range.
func TestRangesNotServed(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	for i, test := range []struct {
		name          string
		fault         func(n int32) *registry.Fault
		whole, ranges int
	}{
		{"403", func(int32) *registry.Fault { return &registry.Fault{Status: http.StatusForbidden} }, 1, 1},
		{"429 from the third on", func(n int32) *registry.Fault {
			if n == 0 {
				return nil
			}
			return &registry.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}}
		}, 1, 2},
		{"corrupt", func(int32) *registry.Fault { return &registry.Fault{Corrupt: true, After: 1 << 20} }, 2, -1},
	} {
		t.Run(test.name, func(t *testing.T) {
			reg := testkit.Registry(t)
			repo := strings.ReplaceAll(test.name, " ", "-") + ":v1"
			count := func(all []registry.Request) (whole, ranges int) {
				for _, q := range all {
					if q.Range == "" {
						whole++
					} else {
						ranges++
					}
				}
				return whole, ranges
			}
			got := pullSlowly(r.In(t), reg, repo, largeLayer(2*i+1), test.fault)
			if whole, ranges := count(got); whole != test.whole || ranges != test.ranges && test.ranges >= 0 || ranges == 0 {
				t.Errorf("got %d requests for the layer and %d for ranges, want %d and %d\n%s", whole, ranges, test.whole, test.ranges, reg.Dump())
			}
			reg.Reset()
			got = pullSlowly(r.In(t), reg, "next-"+repo, largeLayer(2*i+2), nil)
			if whole, ranges := count(got); whole != 1 || ranges != 0 {
				t.Errorf("next image: got %d requests for the layer and %d for ranges, want 1 and none\n%s", whole, ranges, reg.Dump())
			}
		})
	}
}
