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

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// concurrentChecks is the number of files that are checked concurrently.
const concurrentChecks = 4

// files are the results of the checks of blob files. A blob that is neither in damaged nor in unread has a file, or was
// not checked.
type files struct {
	sizes map[digest.Digest]int64
	// loaded are the blobs that came from no registry.
	loaded map[digest.Digest]bool
	// refs are the blobs that each blob references.
	refs map[digest.Digest]blobs.Refs
	// layers are the blobs that manifests reference as layers, and that nothing references otherwise. An unpacked image
	// does not need them to run, so they are checked separately.
	layers      map[digest.Digest]bool
	damaged     map[digest.Digest]*blobs.Damage
	unread      map[digest.Digest]error   // it is unknown whether they are damaged
	noDirectory map[store.Snapshot]string // snapshots whose directory is gone, with the problem
}

func newFiles() files {
	return files{
		sizes: make(map[digest.Digest]int64), loaded: make(map[digest.Digest]bool), layers: make(map[digest.Digest]bool), refs: make(map[digest.Digest]blobs.Refs),
		damaged: make(map[digest.Digest]*blobs.Damage), unread: make(map[digest.Digest]error), noDirectory: make(map[store.Snapshot]string),
	}
}

// note adds the record of a blob.
func (f *files) note(i content.Info) {
	f.sizes[i.Digest] = i.Size
	if !FromRegistry(i) {
		f.loaded[i.Digest] = true
	}
	refs := blobs.RefsOf(i)
	all := refs.All()
	if len(all) == 0 {
		return
	}
	f.refs[i.Digest] = refs
	for at, d := range all {
		only, known := f.layers[d]
		f.layers[d] = at < len(refs.Layers) && (only || !known)
	}
}

// check checks the files of all layers, or of all other blobs.
func (f *files) check(ctx context.Context, contents content.Store, layers bool) error {
	var (
		g  errgroup.Group
		mu sync.Mutex
	)
	g.SetLimit(concurrentChecks)
	for _, d := range slices.Sorted(maps.Keys(f.sizes)) {
		size := f.sizes[d]
		if f.layers[d] != layers {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			err := recovered(func() error { return blobs.Check(ctx, contents, d, size) })
			if err == nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			f.noteResult(d, err)
			return nil
		})
	}
	_ = g.Wait() // no function fails, the results are in the maps
	return ctx.Err()
}

// noteResult adds the error of a check.
func (f *files) noteResult(d digest.Digest, err error) {
	if damage := new(blobs.Damage); errors.As(err, &damage) {
		f.damaged[d] = damage
		delete(f.unread, d)
		return
	}
	f.unread[d] = err
}

// FileProblem is a file of a blob that is damaged or cannot be read.
type FileProblem struct {
	Digest digest.Digest
	// Problem continues "its file ...".
	Problem string
	// Unknown reports whether it is unknown whether the file is damaged.
	Unknown bool
}

// problems returns the problems of all files that were checked, in order of their digests.
func (f *files) problems() []FileProblem {
	var all []FileProblem
	for d, damage := range f.damaged {
		all = append(all, FileProblem{Digest: d, Problem: damage.Problem})
	}
	for d, err := range f.unread {
		all = append(all, FileProblem{Digest: d, Problem: "cannot be read: " + err.Error(), Unknown: true})
	}
	slices.SortFunc(all, func(a, b FileProblem) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	return all
}

// blobProblem describes what is wrong with a blob that a key needs. It returns "" if the blob is present.
func (inv *Inventory) blobProblem(what string, d digest.Digest) string {
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

// CheckLayers checks the files of all recorded layers, and returns those with a problem.
func (inv *Inventory) CheckLayers(ctx context.Context, contents content.Store) ([]FileProblem, error) {
	if err := inv.files.check(ctx, contents, true); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(inv.files.problems(), func(p FileProblem) bool { return !inv.files.layers[p.Digest] }), nil
}

// addMissingDirectory adds a snapshot whose directory is gone. why describes the problem.
func (inv *Inventory) addMissingDirectory(snapshotter string, chainID digest.Digest, why string) {
	inv.files.noDirectory[store.Snapshot{Snapshotter: snapshotter, ChainID: chainID}] = why
}
