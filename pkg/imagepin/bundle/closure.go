package bundle

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobtable"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// closure determines which blobs the images of a lock need, and their order in the archive. The caller reads the indexes,
// which increase in number while it does, then the manifests. A blob is its number in blobs.
type closure struct {
	// present returns which manifests of an index are in the bundle.
	present func(*document) (func(n int, d ocispec.Descriptor) bool, error)

	firsts    []lock.Image // the first image of each digest
	blobs     blobtable.Table[blob]
	types     texts // media types
	roots     []uint32
	indexes   []uint32
	manifests []uint32
	configs   []uint32
	layers    []uint32
	children  [][]child // of each index, without those that are absent
	ofLayers  []uint32  // all layers in their order, also those that are metadata of another image
	absent    blobtable.Table[listed]
	listings  []listing // where what is absent is listed
	platforms texts     // of them
	number    int       // of blobs that are needed
	listed    int       // descriptors in indexes and manifests
	size      int64     // of all blobs
	metadata  int64     // of indexes, manifests and configurations
}

// blob is what is known of a blob.
type blob struct {
	size      int64
	first     uint32 // number of the first image that needs it
	place     uint32 // of metadata, in the archive that the reader reads, and of an index among the indexes
	mediaType uint16 // of a blob that is needed
	layerType uint16 // of a layer
	depth     uint8  // of an index, 1 for a root
	flags     flags
}

// flags are facts about a blob.
type flags uint8

const (
	isNeeded   flags = 1 << iota // it is in the archive
	isMetadata                   // as an index, a manifest or a configuration
	isLayer                      // a manifest or an index lists it as a layer
	isOmitted                    // it is a layer that is not in the archive
	isRoot
	isWalked
)

// child is what an index lists.
type child struct {
	blob      uint32
	mediaType uint16 // it can differ from that of the blob
}

// listed reports whether an index lists a manifest that is absent.
type listed bool

// listing is a manifest that an index lists, and that is absent.
type listing struct {
	index, manifest uint32 // in blobs and in absent
	platform        uint16
}

// Absent is a manifest of another platform, which a bundle does not have.
type Absent struct {
	// Index is the digest of the index that lists it, Manifest is its own.
	Index, Manifest digest.Digest
	// Platform is as in platforms.FormatAll.
	Platform string
}

// texts keeps each text once.
type texts struct {
	all     []string
	numbers map[string]uint16
	size    int
}

// add returns the number of a text.
func (t *texts) add(text string) (uint16, error) {
	if n, ok := t.numbers[text]; ok {
		return n, nil
	}
	if t.size += len(text); t.size > maxTexts || len(t.all) >= maxTextsNumber {
		return 0, fmt.Errorf("more than %d media types or platforms, or more than %d bytes of them", maxTextsNumber, maxTexts)
	}
	if t.numbers == nil {
		t.numbers = make(map[string]uint16)
	}
	n := uint16(len(t.all))
	t.numbers[text] = n
	t.all = append(t.all, text)
	return n, nil
}

func newClosure(l *lock.Lock) *closure { return &closure{firsts: distinct(l)} }

func (c *closure) at(n uint32) *blob { return c.blobs.At(int(n)) }

// find returns what is known of a blob.
func (c *closure) find(d digest.Digest) (n uint32, b *blob, ok bool) {
	at, ok := c.blobs.Find(d)
	if !ok {
		return 0, nil, false
	}
	return uint32(at), c.blobs.At(at), true
}

// has reports whether a blob has a flag.
func (c *closure) has(d digest.Digest, flag flags) bool {
	_, b, ok := c.find(d)
	return ok && b.flags&flag != 0
}

// repo returns the repository of the first image that needs a blob.
func (c *closure) repo(n uint32) reference.Named { return c.firsts[c.at(n).first].Ref }

// desc returns the descriptor of a blob that is needed.
func (c *closure) desc(n uint32) ocispec.Descriptor {
	b := c.at(n)
	return ocispec.Descriptor{MediaType: c.types.all[b.mediaType], Digest: c.blobs.Digest(int(n)), Size: b.size}
}

// note returns the number of a blob, and that of its media type. The blob need not be needed.
func (c *closure) note(d ocispec.Descriptor, first uint32) (n uint32, mediaType uint16, err error) {
	if err := checkDescriptor(d); err != nil {
		return 0, 0, err
	}
	if mediaType, err = c.types.add(d.MediaType); err != nil {
		return 0, 0, err
	}
	at, added, err := c.blobs.Add(d.Digest)
	if err != nil {
		return 0, 0, err
	}
	b := c.blobs.At(at)
	switch {
	case added && at >= maxBlobs:
		return 0, 0, fmt.Errorf("more than %d blobs", maxBlobs)
	case added:
		b.size, b.first = d.Size, first
	case b.size != d.Size:
		return 0, 0, fmt.Errorf("%s has two sizes, %d and %d bytes", d.Digest, b.size, d.Size)
	}
	return uint32(at), mediaType, nil
}

// need adds a blob to a group, if it is not needed yet.
func (c *closure) need(group *[]uint32, n uint32, mediaType uint16, metadata bool) error {
	b, text := c.at(n), c.types.all[mediaType]
	if b.flags&isNeeded != 0 {
		if was := c.types.all[b.mediaType]; metadata && images.IsIndexType(was) != images.IsIndexType(text) {
			return fmt.Errorf("%s has two media types, %.80q and %.80q", c.blobs.Digest(int(n)), was, text)
		}
		return nil
	}
	b.flags, b.mediaType = b.flags|isNeeded, mediaType
	if metadata {
		b.flags |= isMetadata
		if b.size > maxMetadataBlob {
			return fmt.Errorf("%s (%.80q) has %d bytes, the limit is %d", c.blobs.Digest(int(n)), text, b.size, maxMetadataBlob)
		}
		if c.metadata += b.size; c.metadata > maxMetadata {
			return fmt.Errorf("indexes, manifests and configurations have more than %d bytes", maxMetadata)
		}
	}
	if c.size += b.size; c.size > maxSize {
		return fmt.Errorf("all blobs have more than %d bytes", int64(maxSize))
	}
	c.number++
	*group = append(*group, n)
	return nil
}

// needIndex is need for an index.
func (c *closure) needIndex(n uint32, mediaType uint16, depth uint8) error {
	before := len(c.indexes)
	if err := c.need(&c.indexes, n, mediaType, true); err != nil {
		return err
	}
	b := c.at(n)
	if len(c.indexes) > before {
		b.place, b.depth = uint32(before), depth
		c.children = append(c.children, nil)
	}
	if b.depth > maxDepth {
		return fmt.Errorf("index %s: indexes are nested more than %d deep", c.blobs.Digest(int(n)), maxDepth)
	}
	return nil
}

// addRoot adds the index or manifest of the image with a number in firsts.
func (c *closure) addRoot(d ocispec.Descriptor, first int) error {
	n, mediaType, err := c.note(d, uint32(first))
	if err != nil {
		return err
	}
	switch {
	case images.IsIndexType(d.MediaType):
		err = c.needIndex(n, mediaType, 1)
	case images.IsManifestType(d.MediaType):
		err = c.need(new([]uint32), n, mediaType, true) // collectManifests determines the order
	default:
		err = fmt.Errorf("%s has the media type %.80q, want an index or a manifest", d.Digest, d.MediaType)
	}
	if err != nil {
		return err
	}
	c.at(n).flags |= isRoot
	c.roots = append(c.roots, n)
	return nil
}

// childrenOf returns what an index lists, without what is absent. It returns nothing for another blob.
func (c *closure) childrenOf(n uint32) []child {
	if b := c.at(n); b.depth > 0 {
		return c.children[b.place]
	}
	return nil
}

// addIndex adds what an index of the closure lists.
func (c *closure) addIndex(n uint32, data []byte) error {
	of := c.desc(n)
	doc, err := parse(of, data)
	if err != nil {
		return err
	}
	if err := c.countListed(doc.manifests.number); err != nil {
		return err
	}
	at := 0
	present, err := c.present(doc)
	if err == nil {
		err = doc.manifests.each(func(d ocispec.Descriptor) error {
			at++
			if !present(at-1, d) {
				return c.addAbsent(n, d)
			}
			return c.addChild(n, d)
		})
	}
	if err != nil {
		return fmt.Errorf("index %s: %w", of.Digest, err)
	}
	return nil
}

// addChild adds what an index lists.
func (c *closure) addChild(index uint32, d ocispec.Descriptor) error {
	parent := *c.at(index)
	n, mediaType, err := c.note(d, parent.first)
	if err != nil {
		return err
	}
	c.children[parent.place] = append(c.children[parent.place], child{n, mediaType})
	if !images.IsIndexType(d.MediaType) {
		return nil
	}
	return c.needIndex(n, mediaType, parent.depth+1)
}

// addAbsent adds what an index lists, and is absent.
func (c *closure) addAbsent(index uint32, d ocispec.Descriptor) error {
	if len(c.listings) >= maxAbsent {
		return fmt.Errorf("more than %d manifests are absent", maxAbsent)
	}
	platform, err := c.platforms.add(formatPlatform(d.Platform))
	if err != nil {
		return err
	}
	n, _, err := c.absent.Add(d.Digest)
	if err != nil {
		return err
	}
	*c.absent.At(n) = true
	c.listings = append(c.listings, listing{index, uint32(n), platform})
	return nil
}

// countListed counts what indexes and manifests list, also what another one lists too.
func (c *closure) countListed(n int) error {
	if c.listed += n; c.listed > maxListed {
		return fmt.Errorf("indexes and manifests list more than %d blobs", maxListed)
	}
	return nil
}

// collectManifests determines the manifests, after all indexes were read.
func (c *closure) collectManifests() error {
	for _, n := range c.roots {
		b := c.at(n)
		if images.IsManifestType(c.types.all[b.mediaType]) {
			if b.flags&isWalked == 0 {
				b.flags |= isWalked
				c.manifests = append(c.manifests, n)
			}
			continue
		}
		if err := c.walk(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *closure) walk(n uint32) error {
	if b := c.at(n); b.flags&isWalked != 0 {
		return nil
	}
	c.at(n).flags |= isWalked
	for _, listed := range c.childrenOf(n) {
		mediaType := c.types.all[listed.mediaType]
		if images.IsIndexType(mediaType) {
			if err := c.walk(listed.blob); err != nil {
				return err
			}
			continue
		}
		if !images.IsManifestType(mediaType) {
			continue // collectLayers adds it
		}
		if err := c.need(&c.manifests, listed.blob, listed.mediaType, true); err != nil {
			return fmt.Errorf("index %s: %w", c.blobs.Digest(int(n)), err)
		}
	}
	return nil
}

// addManifest adds the configuration of a manifest of the closure, and reads its layers.
func (c *closure) addManifest(n uint32, data []byte) error {
	of := c.desc(n)
	doc, err := parse(of, data)
	if err != nil {
		return err
	}
	if !doc.hasConfig {
		return fmt.Errorf("manifest %s has no configuration", of.Digest)
	}
	first := c.at(n).first
	config, mediaType, err := c.note(doc.config, first)
	if err == nil {
		err = c.need(&c.configs, config, mediaType, true)
	}
	if err != nil {
		return fmt.Errorf("manifest %s: configuration: %w", of.Digest, err)
	}
	if err := c.countListed(doc.layers.number); err != nil {
		return err
	}
	err = doc.layers.each(func(d ocispec.Descriptor) error {
		layer, mediaType, err := c.note(d, first)
		if err == nil {
			c.addLayer(layer, mediaType)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("manifest %s: %w", of.Digest, err)
	}
	return nil
}

// addLayer adds a layer that a manifest lists, or an index.
func (c *closure) addLayer(n uint32, mediaType uint16) {
	if b := c.at(n); b.flags&isLayer == 0 {
		b.flags, b.layerType = b.flags|isLayer, mediaType
		c.ofLayers = append(c.ofLayers, n)
	}
}

// collectLayers determines the layers, after all manifests were read. It skips those in omitted. It fails if one of them is not
// a layer, or is metadata too.
func (c *closure) collectLayers(omitted iter.Seq[digest.Digest]) error {
	for _, children := range c.children { // for example a cache of BuildKit
		for _, listed := range children {
			if t := c.types.all[listed.mediaType]; !images.IsIndexType(t) && !images.IsManifestType(t) {
				c.addLayer(listed.blob, listed.mediaType)
			}
		}
	}
	for d := range omitted {
		switch _, b, ok := c.find(d); {
		case ok && b.flags&isNeeded != 0:
			return fmt.Errorf("%s is omitted, but it is an index, a manifest or a configuration", d)
		case !ok || b.flags&isLayer == 0:
			return fmt.Errorf("%s is omitted, but no image has this layer", d)
		default:
			b.flags |= isOmitted
		}
	}
	for _, n := range c.ofLayers {
		if b := c.at(n); b.flags&isOmitted != 0 {
			continue
		} else if err := c.need(&c.layers, n, b.layerType, false); err != nil {
			return err
		}
	}
	for n := range c.absent.Len() {
		if d := c.absent.Digest(n); c.has(d, isNeeded) {
			return fmt.Errorf("%s is absent, but it is needed", d)
		}
	}
	return nil
}

// allAbsent returns what is absent, ordered by the digest of the manifest.
func (c *closure) allAbsent() []Absent {
	var all []Absent
	for _, l := range c.listings {
		all = append(all, Absent{c.blobs.Digest(int(l.index)), c.absent.Digest(int(l.manifest)), c.platforms.all[l.platform]})
	}
	slices.SortStableFunc(all, func(a, b Absent) int { return cmp.Compare(a.Manifest, b.Manifest) })
	return all
}

// absentDigests returns the digests of what is absent, sorted.
func (c *closure) absentDigests() []digest.Digest {
	var all []digest.Digest
	for n := range c.absent.Len() {
		all = append(all, c.absent.Digest(n))
	}
	slices.Sort(all)
	return all
}

// omitted returns the layers that are omitted, sorted.
func (c *closure) omitted() []digest.Digest {
	var all []digest.Digest
	for n := range c.blobs.Len() {
		if c.blobs.At(n).flags&isOmitted != 0 {
			all = append(all, c.blobs.Digest(n))
		}
	}
	slices.Sort(all)
	return all
}

// formatPlatform returns the platform of a descriptor, as in platforms.FormatAll.
func formatPlatform(p *ocispec.Platform) string {
	if p == nil {
		return "unknown"
	}
	return platforms.FormatAll(platforms.Normalize(*p))
}
