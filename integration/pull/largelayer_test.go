package pull

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLargeLayer pulls a layer of 100 MiB over a connection that stops within the bytes that imagepin measures, for
// several times as long as the node needed until there. So the connection is the limit, however slow the machine is.
// imagepin fetches the rest of the layer in ranges, each byte once.
func TestLargeLayer(t *testing.T) {
	t.Parallel()
	const size, stops, chunk = 100 << 20, 20 << 20, 16 << 20 // bytes
	r := testkit.NewRig(t, node.Options{NoPods: true})
	opts := images.Options{Random: []images.Random{{Size: size}}, Compression: images.Uncompressed}
	img := testkit.App(t, opts)
	tag, _ := r.PushImage("large:v1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	layer, err := layers[len(layers)-1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	resume := make(chan struct{})
	r.Reg.SetFault(func(q registry.Request) *registry.Fault {
		if q.Reference != layer.String() || q.Range != "" {
			return nil
		}
		return &registry.Fault{Hang: resume, After: stops}
	})
	pulled := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := r.Pull(r.Ctx, tag, "")
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
		t.Fatal(err)
	}

	requests := slices.DeleteFunc(r.Reg.Requests(), func(q registry.Request) bool {
		return q.Kind != registry.Blob || q.Range == ""
	})
	type part struct{ first, last int }
	parts := make([]part, len(requests))
	for i, q := range requests {
		if _, err := fmt.Sscanf(q.Range, "bytes=%d-%d", &parts[i].first, &parts[i].last); err != nil || q.Status != http.StatusPartialContent || q.Bytes > chunk {
			t.Errorf("%s: want a range of at most %d bytes", q, chunk)
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.first, b.first) })
	if len(parts) < 5 || parts[0].first < 24<<20 || parts[len(parts)-1].last < size {
		t.Fatalf("got ranges %v, want the rest of the layer after 24 MiB\n%s", parts, r.Reg.Dump())
	}
	for i, p := range parts[1:] {
		if p.first != parts[i].last+1 {
			t.Errorf("the range %v does not follow %v", p, parts[i])
		}
	}
}
