package health

import (
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// checkUnneeded reports each blob with a damaged or unreadable file that no key needs once, for the first key that has it: layers of
// unpacked images, and what else an index references. A blob that a key needs is reported with the loss of that key.
func (c *Checker) checkUnneeded(have *Inventory, r *Report) {
	problems := have.files.problems()
	if len(problems) == 0 {
		return
	}
	needed := make(map[digest.Digest]bool)
	layersOf := make(map[digest.Digest][]imagepin.Entry) // layer -> keys whose manifest has it
	keptBy := make(map[digest.Digest][]imagepin.Entry)   // blob -> keys whose record keeps it
	for _, img := range c.config.Images.Images() {
		for _, e := range img.Entries {
			content, _ := have.needed(e)
			for _, n := range content {
				needed[n.Digest] = true
			}
			for _, d := range have.files.refs[e.Manifest].All() {
				layersOf[d] = append(layersOf[d], e)
			}
			below := make(map[digest.Digest]digest.Digest)
			have.addBelow(below, e)
			for d := range below {
				keptBy[d] = append(keptBy[d], e)
			}
		}
	}
	for _, p := range problems {
		switch {
		case needed[p.Digest]:
		case len(layersOf[p.Digest]) > 0:
			r.addUnneeded("layer", ", but it cannot be unpacked for another handler", p, layersOf[p.Digest])
		case len(keptBy[p.Digest]) > 0:
			r.addUnneeded("content", "", p, keptBy[p.Digest])
		}
	}
}

// addUnneeded adds a blob that no key needs, for the first of the keys that have it.
func (r *Report) addUnneeded(kind, effect string, p FileProblem, entries []imagepin.Entry) {
	first := slices.MinFunc(entries, store.Compare)
	problem := fmt.Sprintf("the file of %s %s %s", kind, p.Digest, p.Problem)
	if len(entries) > 1 {
		problem += fmt.Sprintf(" (%d keys have it)", len(entries))
	}
	r.add(DamagedBlob, first, problem+": pods can use the image"+effect)
	r.Findings[len(r.Findings)-1].Loss = Loss{Entry: first, Reason: problem, Blob: p.Digest, Unknown: p.Unknown}
}
