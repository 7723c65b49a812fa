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

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// present implements closure.present.
func (b *Bundle) present(_ ocispec.Descriptor, children []ocispec.Descriptor) []bool {
	present := make([]bool, len(children))
	for n, d := range children {
		_, absent := slices.BinarySearch(b.description.Absent, d.Digest)
		present[n] = !absent
	}
	return present
}

// readIndex reads the first two entries: the layout, and index.json with the descriptors that it has, see [readIndexJSON].
func (b *Bundle) readIndex(a *archive) (index []byte, roots map[digest.Digest]ocispec.Descriptor, own ocispec.Descriptor, _ error) {
	layout, err := b.readFile(a, ocispec.ImageLayoutFile, int64(len(layoutFile)))
	if err != nil {
		return nil, nil, own, err
	}
	if !bytes.Equal(layout, layoutFile) {
		return nil, nil, own, &entryError{ocispec.ImageLayoutFile, errors.New("it is not that of an OCI image layout 1.0.0")}
	}
	size, err := a.nextUnsized(ocispec.ImageIndexFile, maxIndexJSON)
	if err != nil {
		return nil, nil, own, err
	}
	index, err = b.content(a, ocispec.ImageIndexFile, size)
	if err != nil {
		return nil, nil, own, err
	}
	roots, own, err = readIndexJSON(index)
	if err != nil {
		return nil, nil, own, &entryError{ocispec.ImageIndexFile, err}
	}
	return index, roots, own, nil
}

// readMetadata reads all entries before the layers.
func (b *Bundle) readMetadata(a *archive) error {
	index, roots, own, err := b.readIndex(a)
	if err != nil {
		return err
	}
	b.id = own.Digest
	if err := b.readOwn(a, own); err != nil {
		return err
	}
	if err := b.checkIndexJSON(index, roots, own); err != nil {
		return &entryError{ocispec.ImageIndexFile, err}
	}
	if err := b.readImages(a, roots); err != nil {
		return err
	}
	return b.checkPlatforms()
}

// readIndexJSON returns the descriptors of images in index.json by digest, and that of the bundle's own manifest.
func readIndexJSON(data []byte) (roots map[digest.Digest]ocispec.Descriptor, own ocispec.Descriptor, err error) {
	var index struct {
		Manifests descriptors `json:"manifests"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, own, err
	}
	if len(index.Manifests) == 0 {
		return nil, own, errors.New("it lists nothing")
	}
	own = index.Manifests[len(index.Manifests)-1]
	if own.ArtifactType != ArtifactType || own.MediaType != ocispec.MediaTypeImageManifest {
		return nil, own, fmt.Errorf("it is not that of a bundle: its last descriptor has the artifact type %.80q", own.ArtifactType)
	}
	roots = make(map[digest.Digest]ocispec.Descriptor)
	for _, d := range index.Manifests[:len(index.Manifests)-1] {
		roots[d.Digest] = manifestDescriptor(d)
	}
	return roots, own, nil
}

// readOwn reads the bundle's own manifest, its description and the lock.
func (b *Bundle) readOwn(a *archive, own ocispec.Descriptor) error {
	data, err := b.readBlob(a, own, maxMetadataBlob)
	if err != nil {
		return err
	}
	fail := func(d ocispec.Descriptor, err error) error { return &entryError{blobName(d.Digest), err} }
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return fail(own, err)
	}
	if len(manifest.Layers) != 1 {
		return fail(own, fmt.Errorf("it has %d layers, the manifest of a bundle has one", len(manifest.Layers)))
	}
	config, lockYAML := manifest.Config, manifest.Layers[0]
	for _, d := range []ocispec.Descriptor{config, lockYAML} {
		if err := checkDescriptor(d); err != nil {
			return fail(own, err)
		}
	}
	if config.MediaType != DescriptionMediaType || lockYAML.MediaType != lock.MediaType {
		return fail(own, fmt.Errorf("its parts have the media types %.80q and %.80q", config.MediaType, lockYAML.MediaType))
	}
	if want, err := ownManifest(config, lockYAML); err != nil || !bytes.Equal(want, data) {
		return fail(own, errors.New("it differs from the manifest of a bundle"))
	}
	text, err := b.readBlob(a, config, maxMetadataBlob)
	if err != nil {
		return err
	}
	if err := b.parseDescription(text); err != nil {
		return fail(config, err)
	}
	if lockYAML.Digest != b.description.Lock {
		return fail(own, fmt.Errorf("its lock is %s, but that of its description %s", lockYAML.Digest, b.description.Lock))
	}
	read, err := b.readBlob(a, lockYAML, lock.MaxSize)
	if err != nil {
		return err
	}
	b.lockYAML = slices.Clone(read)
	if b.lock, err = lock.Parse(b.lockYAML); err != nil {
		return fail(lockYAML, err)
	}
	if again, err := b.lock.Marshal(); err != nil || !bytes.Equal(again, b.lockYAML) {
		return fail(lockYAML, errors.New("the lock is not written as imagepin writes it"))
	}
	return nil
}

func (b *Bundle) parseDescription(text []byte) error {
	if n := bytes.Count(text, []byte(`"`)) / 2; n > len(text)/minDigest+maxPlatforms {
		return fmt.Errorf("it has %d texts in %d bytes", n, len(text)) // most of them are not digests
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&b.description); err != nil {
		return err
	}
	if again, err := json.Marshal(b.description); err != nil || !bytes.Equal(again, text) {
		return errors.New("it is not written as imagepin writes it")
	}
	return b.description.check()
}

// checkIndexJSON checks that index.json lists what the lock names, and nothing else.
func (b *Bundle) checkIndexJSON(data []byte, roots map[digest.Digest]ocispec.Descriptor, own ocispec.Descriptor) error {
	firsts := distinct(b.lock)
	for _, i := range firsts {
		if _, ok := roots[i.Ref.Digest()]; !ok {
			return fmt.Errorf("it does not list %s, which the lock names", i.Ref)
		}
	}
	if len(roots) != len(firsts) {
		return fmt.Errorf("it lists %d images, the lock names %d", len(roots), len(firsts))
	}
	if want, err := indexJSON(b.lock, roots, own); err != nil || !bytes.Equal(want, data) {
		return errors.New("it differs from what the lock requires")
	}
	return nil
}

// readImages reads the metadata of images, and determines the layers.
func (b *Bundle) readImages(a *archive, roots map[digest.Digest]ocispec.Descriptor) error {
	c := b.closure
	for _, i := range distinct(b.lock) {
		if err := c.addRoot(roots[i.Ref.Digest()], i.Ref); err != nil {
			return err
		}
	}
	read := func(i *item, use func(*item, []byte) error) error {
		data, err := b.readBlob(a, i.desc, maxMetadataBlob)
		if err != nil {
			return err
		}
		i.at = b.size - padding(i.desc.Size) - i.desc.Size
		b.entries[len(b.entries)-1].blob = i
		b.metadata.keep(i.desc.Digest, data)
		if err := use(i, data); err != nil {
			return &entryError{blobName(i.desc.Digest), err}
		}
		return nil
	}
	for n := 0; n < len(c.indexes); n++ { // an index can add another one
		if err := read(c.indexes[n], c.addIndex); err != nil {
			return err
		}
	}
	if err := c.collectManifests(); err != nil {
		return err
	}
	for _, i := range c.manifests {
		if err := read(i, c.addManifest); err != nil {
			return err
		}
	}
	for _, i := range c.configs {
		if err := read(i, func(*item, []byte) error { return nil }); err != nil {
			return err
		}
	}
	if err := c.collectLayers(b.description.Omitted); err != nil {
		return err
	}
	if int64(len(c.known)) > b.info.Size()/minBlob {
		return fmt.Errorf("it lists %d blobs, which a file of %d bytes cannot have", len(c.known), b.info.Size())
	}
	for n, e := range b.entries {
		if _, ok := c.isLayer[e.digest]; ok && e.blob != nil {
			b.entries[n].layer = true
		}
	}
	for _, i := range c.layers {
		if err := b.addEntry("", i.desc); err != nil {
			return err
		}
		last := &b.entries[len(b.entries)-1]
		last.blob, last.layer = i, true
	}
	b.size += int64(len(trailer))
	b.metadata.buffer, c.byType, c.ofLayers, c.texts = nil, nil, nil, nil
	for _, i := range c.indexes {
		i.children = nil
	}
	if a.frames != nil {
		b.metadata.starts = slices.Clone(a.frames.starts)
	}
	return nil
}

// checkPlatforms checks that what is absent is of other platforms than those of the bundle.
func (b *Bundle) checkPlatforms() error {
	for _, d := range b.description.Absent {
		listed := b.closure.absent[d]
		if len(listed) == 0 {
			return fmt.Errorf("%s is absent, but no index lists it", d)
		}
		for _, l := range listed {
			if slices.Contains(b.description.Platforms, l.Platform) {
				return fmt.Errorf("%s is absent, but the bundle is for its platform %s", d, l.Platform)
			}
		}
	}
	return nil
}

// readFile reads an entry that is not addressed by its digest.
func (b *Bundle) readFile(a *archive, name string, size int64) ([]byte, error) {
	if err := a.next(name, size); err != nil {
		return nil, err
	}
	return b.content(a, name, size)
}

// content reads the current entry, and records it with its digest.
func (b *Bundle) content(a *archive, name string, size int64) ([]byte, error) {
	data, err := readAll(a, size)
	if err != nil {
		return nil, &entryError{name, err}
	}
	return data, b.addEntry(name, describe("", data))
}

// readBlob reads the entry of a blob. The result is valid until the next call.
func (b *Bundle) readBlob(a *archive, d ocispec.Descriptor, limit int64) ([]byte, error) {
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
	return data, b.addEntry("", d)
}

// addEntry records an entry: that of a blob, or of a file with a name.
func (b *Bundle) addEntry(file string, d ocispec.Descriptor) error {
	e := fileEntry{file: file, digest: d.Digest, size: d.Size}
	h, err := header(e.name(), d.Size)
	if err != nil {
		return &entryError{e.name(), err}
	}
	b.size += int64(len(h)) + d.Size + padding(d.Size)
	b.entries = append(b.entries, e)
	return nil
}
