package health

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

const (
	// contentRefPrefix begins the labels by which a blob keeps the blobs below it
	// alive, layerRefPrefix those by which a manifest keeps its layers.
	contentRefPrefix = "containerd.io/gc.ref.content"
	layerRefPrefix   = contentRefPrefix + ".l."
	// lookers is how many files are looked at at once.
	lookers = 4
)

// files is what was found of the files of blobs. A blob that is in neither map has
// a file, or was not looked at.
type files struct {
	sizes map[digest.Digest]int64
	// below are the blobs that each blob keeps alive.
	below map[digest.Digest][]digest.Digest
	// layers are the blobs that manifests keep as layers, and nothing as anything
	// else. They are not needed to run what is unpacked, and looked at by themselves.
	layers  map[digest.Digest]bool
	damaged map[digest.Digest]*blobs.Damage
	unread  map[digest.Digest]error   // it cannot be told whether they are damaged
	hollow  map[store.Snapshot]string // snapshots whose directory is gone, and that
}

func newFiles() files {
	return files{
		sizes: make(map[digest.Digest]int64), layers: make(map[digest.Digest]bool), below: make(map[digest.Digest][]digest.Digest),
		damaged: make(map[digest.Digest]*blobs.Damage), unread: make(map[digest.Digest]error), hollow: make(map[store.Snapshot]string),
	}
}

// note takes the record of a blob.
func (f *files) note(i content.Info) {
	f.sizes[i.Digest] = i.Size
	for label, value := range i.Labels {
		if !strings.HasPrefix(label, contentRefPrefix) {
			continue
		}
		d := digest.Digest(value)
		f.below[i.Digest] = append(f.below[i.Digest], d)
		only, known := f.layers[d]
		f.layers[d] = strings.HasPrefix(label, layerRefPrefix) && (only || !known)
	}
}

// look looks at the files of all blobs that are layers, or of those that are not.
func (f *files) look(ctx context.Context, contents content.Store, layers bool) error {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	g.SetLimit(lookers)
	for _, d := range slices.Sorted(maps.Keys(f.sizes)) {
		size := f.sizes[d]
		if f.layers[d] != layers {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := recovered(func() error { return blobs.Look(ctx, contents, d, size) })
			if err == nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			f.took(d, err)
			return nil
		})
	}
	_ = g.Wait() // none fails: what was found is in the maps
	return ctx.Err()
}

// took notes what looking at a file gave.
func (f *files) took(d digest.Digest, err error) {
	if damage := new(blobs.Damage); errors.As(err, &damage) {
		f.damaged[d] = damage
		return
	}
	f.unread[d] = err
}

// lacks says what is wrong with a blob that a key needs; nothing where it is there.
func (inv *Inventory) lacks(what string, d digest.Digest) string {
	what += " " + d.String()
	if _, recorded := inv.blobs[d]; !recorded {
		return what + " is gone"
	}
	if damage := inv.files.damaged[d]; damage != nil {
		return "the file of " + what + " " + damage.Problem
	}
	if err := inv.files.unread[d]; err != nil {
		return what + " cannot be read: " + err.Error()
	}
	return ""
}

// unreadable reports whether all that keeps the content of an entry from being
// taken for present is that nothing can be told of a file: it may be all right.
func (inv *Inventory) unreadable(e imagepin.Entry) bool {
	unread := false
	for _, d := range []digest.Digest{e.RecordTarget.Digest, e.Manifest, e.ImageID} {
		if inv.HasBlob(d) {
			continue
		}
		if inv.files.unread[d] == nil {
			return false
		}
		unread = true
	}
	return unread
}

// DamagedLayers looks at the files of the layers that there are records of, and
// gives those that are damaged. What cannot be told is left out.
func (inv *Inventory) DamagedLayers(ctx context.Context, contents content.Store) ([]*blobs.Damage, error) {
	if err := inv.files.look(ctx, contents, true); err != nil {
		return nil, err
	}
	var found []*blobs.Damage
	for d, layer := range inv.files.layers {
		if damage := inv.files.damaged[d]; layer && damage != nil {
			found = append(found, damage)
		}
	}
	slices.SortFunc(found, func(a, b *blobs.Damage) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return found, nil
}

// Add has the inventory know of damage that was found otherwise.
func (inv *Inventory) Add(damage ...*blobs.Damage) {
	for _, d := range damage {
		inv.files.damaged[d.Digest] = d
	}
}

// AddHollow has the inventory know that the directory of a snapshot is gone.
func (inv *Inventory) AddHollow(snapshotter string, chainID digest.Digest, why string) {
	inv.files.hollow[store.Snapshot{Snapshotter: snapshotter, ChainID: chainID}] = why
}
