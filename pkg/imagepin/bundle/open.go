package bundle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/jsontext"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobtable"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// rootTable has the descriptors of images in index.json.
type rootTable struct {
	blobs blobtable.Table[blob]
	types texts
}

// of returns the descriptor of an image.
func (t *rootTable) of(d digest.Digest) ocispec.Descriptor {
	n, ok := t.blobs.Find(d)
	if !ok {
		return ocispec.Descriptor{}
	}
	b := t.blobs.At(n)
	return ocispec.Descriptor{MediaType: t.types.all[b.mediaType], Digest: d, Size: b.size}
}

// readIndex reads the first two entries: the layout, and index.json with the descriptors that it has, see [readIndexJSON].
func (b *Bundle) readIndex(a *archive) (roots *rootTable, own ocispec.Descriptor, _ error) {
	if err := a.next(ocispec.ImageLayoutFile, int64(len(layoutFile))); err != nil {
		return nil, own, err
	}
	layout, err := b.content(a, ocispec.ImageLayoutFile, int64(len(layoutFile)))
	if err != nil {
		return nil, own, err
	}
	if !bytes.Equal(layout, layoutFile) {
		return nil, own, &entryError{ocispec.ImageLayoutFile, errors.New("it is not that of an OCI image layout 1.0.0")}
	}
	size, err := a.nextUnsized(ocispec.ImageIndexFile, maxIndexJSON)
	if err != nil {
		return nil, own, err
	}
	index, err := b.content(a, ocispec.ImageIndexFile, size)
	if err != nil {
		return nil, own, err
	}
	roots, own, err = readIndexJSON(index)
	if err != nil {
		return nil, own, &entryError{ocispec.ImageIndexFile, err}
	}
	return roots, own, nil
}

// readMetadata reads all entries before the layers.
func (b *Bundle) readMetadata(a *archive) error {
	roots, own, err := b.readIndex(a)
	if err != nil {
		return err
	}
	b.id = own.Digest
	d, err := b.readOwn(a, own)
	if err != nil {
		return err
	}
	b.metadata.buffer = nil // that of the lock is large
	if err := b.checkIndexJSON(roots, own); err != nil {
		return &entryError{ocispec.ImageIndexFile, err}
	}
	if err := b.readImages(a, roots, d); err != nil {
		return err
	}
	return b.checkPlatforms()
}

// readIndexJSON returns the descriptors of images in index.json by digest, and that of the bundle's own manifest.
func readIndexJSON(data []byte) (_ *rootTable, own ocispec.Descriptor, err error) {
	var object struct{}
	if err := json.Unmarshal(data, &object); err != nil {
		return nil, own, err
	}
	var manifests list
	for name, value := range jsontext.Members(data) {
		if string(name) == `"manifests"` {
			manifests.text = value
		}
	}
	roots := &rootTable{}
	err = manifests.each(func(d ocispec.Descriptor) error {
		manifests.number++
		before := own
		if own = d; manifests.number == 1 {
			return nil
		}
		mediaType, err := roots.types.add(before.MediaType)
		if err != nil {
			return err
		}
		n, _, err := roots.blobs.Add(before.Digest)
		if err != nil {
			return err
		}
		*roots.blobs.At(n) = blob{size: before.Size, mediaType: mediaType}
		return nil
	})
	if err != nil {
		return nil, own, err
	}
	if manifests.number == 0 {
		return nil, own, errors.New("it lists nothing")
	}
	if own.ArtifactType != ArtifactType || own.MediaType != ocispec.MediaTypeImageManifest {
		return nil, own, fmt.Errorf("it is not that of a bundle: its last descriptor has the artifact type %.80q", own.ArtifactType)
	}
	return roots, own, nil
}

// readOwn reads the bundle's own manifest, its description and the lock.
func (b *Bundle) readOwn(a *archive, own ocispec.Descriptor) (*description, error) {
	data, err := b.readBlob(a, own, maxMetadataBlob)
	if err != nil {
		return nil, err
	}
	fail := func(d ocispec.Descriptor, err error) (*description, error) {
		return nil, &entryError{blobName(d.Digest), err}
	}
	manifest, err := parseDocument(data)
	if err != nil {
		return fail(own, err)
	}
	var layers []ocispec.Descriptor
	if err := manifest.layers.each(func(d ocispec.Descriptor) error { layers = append(layers, d); return nil }); err != nil {
		return fail(own, err)
	}
	if len(layers) != 1 {
		return fail(own, fmt.Errorf("it has %d layers, the manifest of a bundle has one", len(layers)))
	}
	config, lockYAML := manifestDescriptor(manifest.config), manifestDescriptor(layers[0])
	if err := checkDescriptor(config); err != nil {
		return fail(own, err)
	}
	if config.MediaType != DescriptionMediaType || lockYAML.MediaType != lock.MediaType {
		return fail(own, fmt.Errorf("its parts have the media types %.80q and %.80q", config.MediaType, lockYAML.MediaType))
	}
	if want, err := ownManifest(config, lockYAML); err != nil || !bytes.Equal(want, data) {
		return fail(own, errors.New("it differs from the manifest of a bundle"))
	}
	text, err := b.readBlob(a, config, maxMetadataBlob)
	if err != nil {
		return nil, err
	}
	d, err := parseDescription(text)
	if err != nil {
		return fail(config, err)
	}
	b.description = d.Description
	if lockYAML.Digest != d.Lock {
		return fail(own, fmt.Errorf("its lock is %s, but that of its description %s", lockYAML.Digest, d.Lock))
	}
	return d, b.readLock(a, lockYAML)
}

// readLock reads the lock.
func (b *Bundle) readLock(a *archive, of ocispec.Descriptor) error {
	text, err := b.readBlob(a, of, lock.MaxSize)
	if err != nil {
		return err
	}
	if b.lock, err = lock.Parse(text); err != nil {
		return &entryError{blobName(of.Digest), err}
	}
	if again, err := b.lock.Digest(); err != nil || again != of.Digest {
		return &entryError{blobName(of.Digest), errors.New("the lock is not written as imagepin writes it")}
	}
	return nil
}

// checkIndexJSON checks that index.json lists what the lock names, and nothing else.
func (b *Bundle) checkIndexJSON(roots *rootTable, own ocispec.Descriptor) error {
	firsts := distinct(b.lock)
	for _, i := range firsts {
		if !roots.blobs.Has(i.Ref.Digest()) {
			return fmt.Errorf("it does not list %s, which the lock names", i.Ref)
		}
	}
	if roots.blobs.Len() != len(firsts) {
		return fmt.Errorf("it lists %d images, the lock names %d", roots.blobs.Len(), len(firsts))
	}
	want := digest.Canonical.Digester()
	if err := writeIndexJSON(want.Hash(), b.lock, roots.of, own); err != nil || want.Digest() != b.own[1].digest {
		return errors.New("it differs from what the lock requires")
	}
	return nil
}

// readImages reads the metadata of images, and determines the layers.
func (b *Bundle) readImages(a *archive, roots *rootTable, d *description) error {
	c := newClosure(b.lock)
	b.closure = c
	c.absent = d.absent
	c.present = func(*document) (func(int, ocispec.Descriptor) bool, error) {
		return func(_ int, d ocispec.Descriptor) bool { return !c.absent.Has(d.Digest) }, nil
	}
	for n, i := range c.firsts {
		if err := c.addRoot(roots.of(i.Ref.Digest()), n); err != nil {
			return err
		}
	}
	for n := 0; n < len(c.indexes); n++ { // an index can add another one
		if err := b.readImageBlob(a, c.indexes[n], c.addIndex); err != nil {
			return err
		}
	}
	if err := c.collectManifests(); err != nil {
		return err
	}
	for _, n := range c.manifests {
		if err := b.readImageBlob(a, n, c.addManifest); err != nil {
			return err
		}
	}
	for _, n := range c.configs {
		if err := b.readImageBlob(a, n, func(uint32, []byte) error { return nil }); err != nil {
			return err
		}
	}
	if err := c.collectLayers(d.omitted.All()); err != nil {
		return err
	}
	least := int64(minBlob)
	if a.frames == nil {
		least = tarBlock
	}
	if int64(c.number) > b.info.Size()/least {
		return fmt.Errorf("it lists %d blobs, which a file of %d bytes cannot have", c.number, b.info.Size())
	}
	for _, n := range c.layers {
		if err := b.addSize(blobName(c.blobs.Digest(int(n))), c.at(n).size); err != nil {
			return err
		}
	}
	b.size += int64(len(trailer))
	b.metadata.buffer, c.children, c.ofLayers = nil, nil, nil
	if a.frames != nil {
		b.metadata.starts = slices.Clone(a.frames.starts)
	}
	return nil
}

// readImageBlob reads an index, a manifest or a configuration of an image.
func (b *Bundle) readImageBlob(a *archive, n uint32, use func(uint32, []byte) error) error {
	d := b.closure.desc(n)
	data, err := b.readContent(a, d, maxMetadataBlob)
	if err != nil {
		return err
	}
	b.closure.at(n).place = uint32(len(b.metadata.offsets))
	b.metadata.offsets = append(b.metadata.offsets, b.size-padding(d.Size)-d.Size)
	b.metadata.keep(n, data)
	if err := use(n, data); err != nil {
		return &entryError{blobName(d.Digest), err}
	}
	return nil
}

// checkPlatforms checks that what is absent is of other platforms than those of the bundle.
func (b *Bundle) checkPlatforms() error {
	c := b.closure
	for n := range c.absent.Len() {
		if !*c.absent.At(n) {
			return fmt.Errorf("%s is absent, but no index lists it", c.absent.Digest(n))
		}
	}
	for _, l := range c.listings {
		if platform := c.platforms.all[l.platform]; slices.Contains(b.description.Platforms, platform) {
			return fmt.Errorf("%s is absent, but the bundle is for its platform %s", c.absent.Digest(int(l.manifest)), platform)
		}
	}
	return nil
}

// content reads the current entry, which is not addressed by its digest, and records it with that.
func (b *Bundle) content(a *archive, name string, size int64) ([]byte, error) {
	data, err := readAll(a, size)
	if err != nil {
		return nil, &entryError{name, err}
	}
	b.own = append(b.own, fileEntry{file: name, digest: digest.FromBytes(data), size: size})
	return data, b.addSize(name, size)
}

// readBlob reads the entry of a blob that no image has, and records it. The result is valid until the next call.
func (b *Bundle) readBlob(a *archive, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, err := b.readContent(a, d, limit)
	if err == nil {
		b.own = append(b.own, fileEntry{digest: d.Digest, size: d.Size})
	}
	return data, err
}

// readContent reads the entry of a blob. The result is valid until the next call.
func (b *Bundle) readContent(a *archive, d ocispec.Descriptor, limit int64) ([]byte, error) {
	name := blobName(d.Digest)
	if d.Size > limit {
		return nil, &entryError{name, fmt.Errorf("it has %d bytes, the limit is %d", d.Size, limit)}
	}
	if err := a.next(name, d.Size); err != nil {
		return nil, err
	}
	b.metadata.buffer = slices.Grow(b.metadata.buffer[:0], int(d.Size))[:d.Size]
	data := b.metadata.buffer
	if _, err := io.ReadFull(a, data); err != nil {
		return nil, &entryError{name, err}
	}
	if got := d.Digest.Algorithm().FromBytes(data); got != d.Digest {
		return nil, &entryError{name, fmt.Errorf("its content has the digest %s", got)}
	}
	return data, b.addSize(name, d.Size)
}

// addSize adds the size of an entry to that of the archive.
func (b *Bundle) addSize(name string, size int64) error {
	h, err := header(name, size)
	if err != nil {
		return &entryError{name, err}
	}
	b.size += int64(len(h)) + size + padding(size)
	return nil
}
