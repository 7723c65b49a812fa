package usage

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
)

// BenchmarkShare computes the disk space of 10,000 images with 10 layers each, half of which are shared by ten images.
func BenchmarkShare(b *testing.B) {
	const images, layers = 10_000, 10
	all := make(map[digest.Digest]blob)
	a := answer{parents: make(map[string]string), sizes: make(map[string]int64)}
	needed := make([]need, images)
	for i := range needed {
		n := newNeed()
		parent := ""
		for l := range layers {
			name := fmt.Sprint(l, " of ", i)
			if l < layers/2 {
				name = fmt.Sprint(l, " of all like ", i/10)
			}
			d := digest.FromString(name)
			all[d], n.blobs[d] = blob{size: 1}, true
			a.parents[d.String()], a.sizes[d.String()] = parent, 1
			parent = d.String()
		}
		n.snapshots[snapshot{"sn", parent}] = true
		needed[i] = n
	}
	answers := map[string]answer{"sn": a}
	for b.Loop() {
		share(needed, newNeed(), all, answers)
	}
}
