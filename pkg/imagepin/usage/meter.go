package usage

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	containerdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Config configures a Meter. All fields are required.
type Config struct {
	Images      Images
	Records     containerdimages.Store
	Content     content.Store
	Leases      leases.Manager
	Snapshotter func(name string) snapshots.Snapshotter
}

// Images are the images that are ready. [store.Store] implements it.
type Images interface {
	Images() []store.Image
}

// Meter measures. It is safe for concurrent use: concurrent calls share one measurement.
type Meter struct {
	config Config
	flight flight.Group[Usage]
}

// New returns a meter.
func New(c Config) *Meter { return &Meter{config: c} }

// Usage is the disk space of all images.
type Usage struct {
	// Images are the images, the largest unique size first.
	Images []Image
	// Content is the content of images, and Other that of the namespace that no image has. Each blob counts once.
	Content, Other Sum
	// Resumable is what failed pulls have fetched, and no image has, with what has arrived of blobs that are not complete. It is
	// not a part of Other.
	Resumable Sum
	// Snapshotters are the snapshotters in which images are unpacked, or in which something else keeps a snapshot, by name.
	Snapshotters []Snapshotter
}

// Sum is a number of blobs or snapshots, and their size in bytes.
type Sum struct {
	Count int
	Size  int64
}

func (s *Sum) add(size int64) {
	s.Count++
	s.Size = imagepin.AddSize(s.Size, size)
}

// Image is the disk space of one image with all of its references. Sizes are in bytes.
type Image struct {
	ID digest.Digest
	// Refs are its references, tags first.
	Refs []string
	// Content is the size of its blobs on the node.
	Content int64
	// Unpacked has the size of its snapshots, by snapshotter.
	Unpacked []Unpacked
	// Unique is what only this image needs, and Shared the rest.
	Unique, Shared int64
}

// Unpacked is the disk space of an image in one snapshotter.
type Unpacked struct {
	Snapshotter string
	Size        int64
	// Unknown reports that the snapshotter does not respond.
	Unknown bool
}

// Snapshotter is the disk space of all images in one snapshotter. Each snapshot counts once.
type Snapshotter struct {
	Name string
	Sum
	// Other are the committed snapshots that no image has, such as those that a pin retains.
	Other Sum
	// Err is why the snapshotter does not respond.
	Err error
}

// Measure measures all images. It reads containerd's records of content, images and leases once, no files of content, and
// waits for a snapshotter only while it responds.
func (m *Meter) Measure(ctx context.Context) (Usage, error) {
	return m.flight.Do(ctx, "", m.measure)
}

func (m *Meter) measure(ctx context.Context) (Usage, error) {
	all := m.config.Images.Images()
	blobs, err := m.readContent(ctx)
	if err != nil {
		return Usage{}, err
	}
	kept, err := m.keptByOthers(ctx, all, blobs)
	if err != nil {
		return Usage{}, err
	}
	needs := make([]need, len(all))
	for i, img := range all {
		needs[i] = needOf(img, blobs)
	}
	answers := m.askSnapshotters(ctx, append(needs, kept))
	if err := ctx.Err(); err != nil {
		return Usage{}, context.Cause(ctx)
	}
	resumable, err := lease.NewResumes(m.config.Leases, m.config.Content).Kept(ctx)
	if err != nil {
		return Usage{}, err
	}
	u := share(needs, kept, blobs, answers)
	u.addResumable(resumable, needs, kept, blobs)
	for i := range u.Images {
		u.Images[i].ID, u.Images[i].Refs = all[i].ID, refsOf(all[i])
	}
	slices.SortFunc(u.Images, func(a, b Image) int {
		return cmp.Or(cmp.Compare(b.Unique, a.Unique), cmp.Compare(b.Shared, a.Shared), slices.Compare(a.Refs, b.Refs), cmp.Compare(a.ID, b.ID))
	})
	return u, nil
}

// addResumable moves what only failed pulls have fetched from Other to Resumable, and adds what is not complete.
func (u *Usage) addResumable(resumable lease.Kept, needs []need, kept need, all map[digest.Digest]blob) {
	for _, d := range resumable.Blobs {
		b, ok := all[d]
		if !ok || kept.blobs[d] || slices.ContainsFunc(needs, func(n need) bool { return n.blobs[d] }) {
			continue
		}
		u.Resumable.add(b.size)
		u.Other.Count--
		u.Other.Size -= b.size
	}
	u.Resumable.Count += resumable.Writes
	u.Resumable.Size = imagepin.AddSize(u.Resumable.Size, resumable.Written)
}

// refsOf returns the references of an image, tags first.
func refsOf(img store.Image) []string {
	var refs []string
	for _, e := range img.Entries {
		refs = append(refs, e.Ref)
	}
	slices.SortFunc(refs, func(a, b string) int {
		byDigest := func(ref string) int { return strings.Count(ref, "@") }
		return cmp.Or(cmp.Compare(byDigest(a), byDigest(b)), cmp.Compare(a, b))
	})
	return slices.Compact(refs)
}

var errNotLoaded = errors.New("it is not loaded")
