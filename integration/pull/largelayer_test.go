package pull

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestLargeLayer pulls a large layer over a connection that is the limit. imagepin fetches the rest of the layer in ranges,
// each byte once. The first range begins after the bytes that are measured and those that the first connection has
// meanwhile.
func TestLargeLayer(t *testing.T) {
	t.Parallel()
	const size, chunk = 100 << 20, 16 << 20 // bytes
	r := testkit.NewRig(t, node.Options{NoPods: true})
	requests := slices.DeleteFunc(pullSlowly(r, r.Reg, "large:v1", largeLayer(0), nil), func(q registry.Request) bool { return q.Range == "" })
	type part struct{ first, last int }
	parts := make([]part, len(requests))
	for i, q := range requests {
		if _, err := fmt.Sscanf(q.Range, "bytes=%d-%d", &parts[i].first, &parts[i].last); err != nil || q.Status != http.StatusPartialContent || q.Bytes > chunk {
			t.Errorf("%s: want a range of at most %d bytes", q, chunk)
		}
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.first, b.first) })
	if len(parts) < 4 || parts[0].first < 40<<20 || parts[len(parts)-1].last < size {
		t.Fatalf("got ranges %v, want the rest of the layer after 40 MiB\n%s", parts, r.Reg.Dump())
	}
	for i, p := range parts[1:] {
		if p.first != parts[i].last+1 {
			t.Errorf("the range %v does not follow %v", p, parts[i])
		}
	}
}
