package health

import (
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// checkLayers reports each layer with a damaged file once, for the first key that has it.
func (c *Checker) checkLayers(damaged []*blobs.Damage, have *Inventory, r *Report) {
	if len(damaged) == 0 {
		return
	}
	users := make(map[digest.Digest][]imagepin.Entry)
	for _, img := range c.config.Images.Images() {
		for _, e := range img.Entries {
			for _, d := range have.files.children[e.Manifest] {
				users[d] = append(users[d], e)
			}
		}
	}
	for _, damage := range damaged {
		entries := users[damage.Digest]
		if len(entries) == 0 {
			continue // a layer of an image without a key
		}
		first := entries[0]
		for _, e := range entries {
			if store.Compare(e, first) < 0 {
				first = e
			}
		}
		problem := fmt.Sprintf("the file of layer %s %s", damage.Digest, damage.Problem)
		if len(entries) > 1 {
			problem += fmt.Sprintf(" (%d keys have it)", len(entries))
		}
		r.add(DamagedBlob, first, problem+": pods can use the image, but it cannot be unpacked for another handler")
		r.Findings[len(r.Findings)-1].Loss = Loss{Entry: first, Reason: problem, Blob: damage.Digest}
	}
}
