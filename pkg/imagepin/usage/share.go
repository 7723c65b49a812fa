package usage

import (
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// owners counts how many images need a blob or a snapshot. What is also kept for another reason has more than one.
type owners[T comparable] map[T]int

func (o owners[T]) add(of map[T]bool, n int) {
	for item := range of {
		o[item] += n
	}
}

// keptWithoutImage is the number of owners of what stays if all images are removed.
const keptWithoutImage = 2

// share computes the disk space of images from what they need, what would stay without them, and the sizes. Its images are
// in the order of needs.
func share(needs []need, kept need, all map[digest.Digest]blob, answers map[string]answer) Usage {
	content, unpacked := make(owners[digest.Digest]), make(owners[snapshot])
	below := make([]map[snapshot]bool, len(needs))
	for i, n := range needs {
		below[i] = withParents(n.snapshots, answers)
		content.add(n.blobs, 1)
		unpacked.add(below[i], 1)
	}
	u := Usage{Snapshotters: snapshottersOf(unpacked, answers)}
	for d, b := range all {
		if content[d] > 0 {
			u.Content.add(b.size)
		} else {
			u.Other.add(b.size)
		}
	}
	content.add(kept.blobs, keptWithoutImage)
	unpacked.add(withParents(kept.snapshots, answers), keptWithoutImage)
	for i, n := range needs {
		u.Images = append(u.Images, imageOf(n, below[i], content, unpacked, all, answers))
	}
	return u
}

// withParents returns snapshots that exist, and those below them.
func withParents(tops map[snapshot]bool, answers map[string]answer) map[snapshot]bool {
	below := make(map[snapshot]bool)
	for top := range tops {
		for name := range answers[top.snapshotter].chain(top.name) {
			below[snapshot{top.snapshotter, name}] = true
		}
	}
	return below
}

// snapshottersOf returns the snapshotters that answered or should have, with the total of their snapshots.
func snapshottersOf(unpacked owners[snapshot], answers map[string]answer) []Snapshotter {
	var all []Snapshotter
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		sn := Snapshotter{Name: name, Err: answers[name].err}
		for of, size := range answers[name].sizes {
			if unpacked[snapshot{name, of}] > 0 {
				sn.add(size)
			} else {
				sn.Other.add(size)
			}
		}
		all = append(all, sn)
	}
	return all
}

// imageOf returns the disk space of an image from what it needs, its snapshots with those below them, and the owners.
func imageOf(n need, below map[snapshot]bool, content owners[digest.Digest], unpacked owners[snapshot], all map[digest.Digest]blob, answers map[string]answer) Image {
	var img Image
	split := func(size int64, owners int) {
		if owners == 1 {
			img.Unique = imagepin.AddSize(img.Unique, size)
		} else {
			img.Shared = imagepin.AddSize(img.Shared, size)
		}
	}
	for d := range n.blobs {
		img.Content = imagepin.AddSize(img.Content, all[d].size)
		split(all[d].size, content[d])
	}
	sizes := make(map[string]int64)
	for s := range n.snapshots {
		sizes[s.snapshotter] = 0
	}
	for s := range below {
		size := answers[s.snapshotter].sizes[s.name]
		sizes[s.snapshotter] = imagepin.AddSize(sizes[s.snapshotter], size)
		split(size, unpacked[s])
	}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		img.Unpacked = append(img.Unpacked, Unpacked{Snapshotter: name, Size: sizes[name], Unknown: answers[name].err != nil})
	}
	return img
}
