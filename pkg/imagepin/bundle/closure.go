package bundle

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// item is a blob that images of a lock need.
type item struct {
	desc     ocispec.Descriptor // only media type, digest and size
	repo     reference.Named    // of the first image that needs it
	depth    int                // of an index, 1 for a root
	children []*item            // of an index, without those that are absent
	metadata bool
	at       int64 // of metadata, in the archive that the reader reads
}

// closure determines which blobs the images of a lock need, and their order in the archive. The caller reads the indexes,
// which increase in number while it does, then the manifests.
type closure struct {
	// present reports for each manifest in an index whether it is in the bundle.
	present func(parent ocispec.Descriptor, children []ocispec.Descriptor) []bool

	roots     []*item
	indexes   []*item
	manifests []*item
	configs   []*item
	layers    []*item
	known     map[digest.Digest]*item
	isLayer   map[digest.Digest]*item // also those that are metadata of another image
	ofLayers  []*item                 // those of isLayer, in their order
	byType    map[typed]*item         // what indexes list
	texts     map[string]string       // of platforms, each once
	absent    map[digest.Digest][]Absent
	listed    int   // descriptors in indexes and manifests
	absences  int   // in absent
	size      int64 // of all blobs
	metadata  int64 // of indexes, manifests and configurations
}

// Absent is a manifest of another platform, which a bundle does not have.
type Absent struct {
	// Index is the digest of the index that lists it, Manifest is its own.
	Index, Manifest digest.Digest
	// Platform is as in platforms.FormatAll.
	Platform string
}

// typed identifies what an index lists.
type typed struct {
	digest    digest.Digest
	mediaType string
}

func newClosure(present func(ocispec.Descriptor, []ocispec.Descriptor) []bool) *closure {
	return &closure{
		present: present, known: make(map[digest.Digest]*item), isLayer: make(map[digest.Digest]*item),
		absent: make(map[digest.Digest][]Absent), byType: make(map[typed]*item), texts: make(map[string]string),
	}
}

// add adds a blob to a group, if it is new. It returns the blob.
func (c *closure) add(group *[]*item, d ocispec.Descriptor, repo reference.Named, metadata bool) (*item, error) {
	return c.addItem(group, &item{desc: manifestDescriptor(d), repo: repo, metadata: metadata})
}

// addItem adds a blob to a group, if it is new. It returns the blob.
func (c *closure) addItem(group *[]*item, added *item) (*item, error) {
	d, metadata := added.desc, added.metadata
	if err := checkDescriptor(d); err != nil {
		return nil, err
	}
	if i, ok := c.known[d.Digest]; ok {
		if i.desc.Size != d.Size {
			return nil, fmt.Errorf("%s has two sizes, %d and %d bytes", d.Digest, i.desc.Size, d.Size)
		}
		if metadata && images.IsIndexType(i.desc.MediaType) != images.IsIndexType(d.MediaType) {
			return nil, fmt.Errorf("%s has two media types, %.80q and %.80q", d.Digest, i.desc.MediaType, d.MediaType)
		}
		return i, nil
	}
	if metadata {
		if d.Size > maxMetadataBlob {
			return nil, fmt.Errorf("%s (%.80q) has %d bytes, the limit is %d", d.Digest, d.MediaType, d.Size, maxMetadataBlob)
		}
		if c.metadata += d.Size; c.metadata > maxMetadata {
			return nil, fmt.Errorf("indexes, manifests and configurations have more than %d bytes", maxMetadata)
		}
	}
	if c.size += d.Size; c.size > maxSize {
		return nil, fmt.Errorf("all blobs have more than %d bytes", int64(maxSize))
	}
	if len(c.known) >= maxBlobs {
		return nil, fmt.Errorf("more than %d blobs", maxBlobs)
	}
	c.known[d.Digest] = added
	*group = append(*group, added)
	return added, nil
}

// addRoot adds the index or manifest of an image.
func (c *closure) addRoot(d ocispec.Descriptor, repo reference.Named) error {
	group := &c.indexes
	switch {
	case images.IsIndexType(d.MediaType):
	case images.IsManifestType(d.MediaType):
		group = new([]*item) // collectManifests determines the order
	default:
		return fmt.Errorf("%s has the media type %.80q, want an index or a manifest", d.Digest, d.MediaType)
	}
	i, err := c.add(group, d, repo, true)
	if err != nil {
		return err
	}
	i.depth = 1
	c.roots = append(c.roots, i)
	return nil
}

// parse reads an index or a manifest. It must be what its descriptor says.
func parse(d ocispec.Descriptor, data []byte) (*document, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("%s (%s): %w", d.Digest, d.MediaType, err)
	}
	if doc.MediaType != "" && doc.MediaType != d.MediaType {
		return nil, fmt.Errorf("%s has the media type %.80q, but its descriptor %.80q", d.Digest, doc.MediaType, d.MediaType)
	}
	isIndex := images.IsIndexType(d.MediaType)
	if isIndex && (doc.Config.isSet || len(doc.Layers) > 0 || bool(doc.FSLayers)) || !isIndex && len(doc.Manifests) > 0 {
		return nil, fmt.Errorf("%s is not what its descriptor says, %.80q", d.Digest, d.MediaType)
	}
	return &doc, nil
}

// addIndex adds what an index of the closure lists.
func (c *closure) addIndex(i *item, data []byte) error {
	doc, err := parse(i.desc, data)
	if err != nil {
		return err
	}
	if err := c.countListed(len(doc.Manifests)); err != nil {
		return err
	}
	present := c.present(i.desc, doc.Manifests)
	for n, d := range doc.Manifests {
		if !present[n] {
			if c.absences++; c.absences > maxAbsent {
				return fmt.Errorf("more than %d manifests are absent", maxAbsent)
			}
			c.addAbsent(Absent{i.desc.Digest, d.Digest, formatPlatform(d.Platform)})
			continue
		}
		listed, err := c.listedItem(d, i.repo)
		if err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
		i.children = append(i.children, listed)
		if !images.IsIndexType(d.MediaType) {
			continue
		}
		child, err := c.addItem(&c.indexes, listed)
		if err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
		if child.depth == 0 {
			child.depth = i.depth + 1
		}
		if child.depth > maxDepth {
			return fmt.Errorf("index %s: indexes are nested more than %d deep", d.Digest, maxDepth)
		}
	}
	return nil
}

// listedItem returns the item of what an index lists, the same one each time.
func (c *closure) listedItem(d ocispec.Descriptor, repo reference.Named) (*item, error) {
	key := typed{d.Digest, d.MediaType}
	i, ok := c.byType[key]
	if !ok {
		if len(c.byType) >= maxBlobs {
			return nil, fmt.Errorf("more than %d blobs", maxBlobs)
		}
		i = &item{desc: manifestDescriptor(d), repo: repo, metadata: images.IsIndexType(d.MediaType) || images.IsManifestType(d.MediaType)}
		c.byType[key] = i
	}
	if i.desc.Size != d.Size {
		return nil, fmt.Errorf("%s has two sizes, %d and %d bytes", d.Digest, i.desc.Size, d.Size)
	}
	return i, nil
}

// addAbsent adds a manifest that is absent.
func (c *closure) addAbsent(a Absent) {
	if text, ok := c.texts[a.Platform]; ok {
		a.Platform = text
	} else {
		c.texts[a.Platform] = a.Platform
	}
	if listed := c.absent[a.Manifest]; len(listed) > 0 {
		a.Manifest = listed[0].Manifest
	}
	c.absent[a.Manifest] = append(c.absent[a.Manifest], a)
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
	walked := make(map[digest.Digest]bool)
	for _, r := range c.roots {
		if images.IsManifestType(r.desc.MediaType) {
			if !walked[r.desc.Digest] {
				walked[r.desc.Digest] = true
				c.manifests = append(c.manifests, r)
			}
			continue
		}
		if err := c.walk(r, walked); err != nil {
			return err
		}
	}
	return nil
}

func (c *closure) walk(i *item, walked map[digest.Digest]bool) error {
	if walked[i.desc.Digest] {
		return nil
	}
	walked[i.desc.Digest] = true
	for _, listed := range i.children {
		if child, ok := c.known[listed.desc.Digest]; ok && images.IsIndexType(listed.desc.MediaType) {
			if err := c.walk(child, walked); err != nil {
				return err
			}
			continue
		}
		if !images.IsManifestType(listed.desc.MediaType) {
			continue // collectLayers adds it
		}
		if _, err := c.addItem(&c.manifests, listed); err != nil {
			return fmt.Errorf("index %s: %w", i.desc.Digest, err)
		}
	}
	return nil
}

// addManifest adds the configuration of a manifest of the closure, and reads its layers.
func (c *closure) addManifest(i *item, data []byte) error {
	doc, err := parse(i.desc, data)
	if err != nil {
		return err
	}
	if !doc.Config.isSet {
		return fmt.Errorf("manifest %s has no configuration", i.desc.Digest)
	}
	if _, err := c.add(&c.configs, doc.Config.descriptor(), i.repo, true); err != nil {
		return fmt.Errorf("manifest %s: configuration: %w", i.desc.Digest, err)
	}
	return c.addLayers(i, doc.Layers)
}

// addLayers adds the layers that a manifest lists, or an index.
func (c *closure) addLayers(of *item, layers []ocispec.Descriptor) error {
	if err := c.countListed(len(layers)); err != nil {
		return err
	}
	for _, d := range layers {
		first, ok := c.isLayer[d.Digest]
		switch {
		case !ok && len(c.isLayer) >= maxBlobs:
			return fmt.Errorf("more than %d layers", maxBlobs)
		case !ok:
			i := &item{desc: manifestDescriptor(d), repo: of.repo}
			c.isLayer[d.Digest] = i
			c.ofLayers = append(c.ofLayers, i)
		case first.desc.Size != d.Size:
			return fmt.Errorf("%s: %s has two sizes, %d and %d bytes", of.desc.Digest, d.Digest, first.desc.Size, d.Size)
		}
	}
	return nil
}

// collectLayers determines the layers, after all manifests were read. It skips those in omitted. It fails if one of them is not
// a layer, or is metadata too.
func (c *closure) collectLayers(omitted []digest.Digest) error {
	skip := make(map[digest.Digest]bool, len(omitted))
	for _, d := range omitted {
		if _, ok := c.known[d]; ok {
			return fmt.Errorf("%s is omitted, but it is an index, a manifest or a configuration", d)
		}
		skip[d] = true
	}
	for _, i := range c.indexes { // for example a cache of BuildKit
		var others []ocispec.Descriptor
		for _, listed := range i.children {
			if !listed.metadata {
				others = append(others, listed.desc)
			}
		}
		if err := c.addLayers(i, others); err != nil {
			return err
		}
	}
	for _, i := range c.ofLayers {
		if skip[i.desc.Digest] {
			continue
		}
		if _, err := c.addItem(&c.layers, i); err != nil {
			return err
		}
	}
	for d := range skip {
		if _, ok := c.isLayer[d]; !ok {
			return fmt.Errorf("%s is omitted, but no image has this layer", d)
		}
	}
	for d := range c.absent {
		if _, ok := c.known[d]; ok {
			return fmt.Errorf("%s is absent, but it is needed", d)
		}
	}
	return nil
}

// formatPlatform returns the platform of a descriptor, as in platforms.FormatAll.
func formatPlatform(p *ocispec.Platform) string {
	if p == nil {
		return "unknown"
	}
	return platforms.FormatAll(platforms.Normalize(*p))
}
