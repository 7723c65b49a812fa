package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	ctdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/offline"
)

const (
	// snapshotter is the default snapshotter of the daemons.
	snapshotter = offline.Snapshotter
	// managedLabel is the label of images that containerd's CRI has pulled.
	managedLabel = "io.cri-containerd.image"
)

// batch is the number of images that are written in one transaction.
const batch = 500

// fill writes the images 0 to count-1 to a root, as stock containerd's CRI does. Each has three records, an index with
// the manifest of this machine's platform, configuration, layers, of which only the last is unique, and snapshots.
func fill(ctx context.Context, r *offline.Root, count int) error {
	for from := 0; from < count; from += batch {
		if err := r.AtOnce(ctx, func(ctx context.Context) error {
			for i := from; i < min(from+batch, count); i++ {
				img, err := newSynthetic(i)
				if err != nil {
					return err
				}
				if err := put(ctx, r, img); err != nil {
					return fmt.Errorf("writing image %d: %w", i, err)
				}
			}
			return ctx.Err()
		}); err != nil {
			return err
		}
	}
	return nil
}

func put(ctx context.Context, r *offline.Root, img *synthetic) error {
	for _, b := range img.blobs {
		err := content.WriteBlob(ctx, r.Content, b.desc.Digest.String(), bytes.NewReader(b.data), b.desc, content.WithLabels(b.labels))
		if err != nil && !errdefs.IsAlreadyExists(err) {
			return err
		}
	}
	for i := range img.diffIDs {
		if err := r.Commit(ctx, img.diffIDs[:i+1]); err != nil {
			return err
		}
	}
	for _, name := range []string{img.ref, img.digested, img.config.String()} {
		record := ctdimages.Image{Name: name, Target: img.target, Labels: map[string]string{managedLabel: "managed"}}
		if _, err := r.Images.Create(ctx, record); err != nil {
			return err
		}
	}
	return nil
}

// damage removes the top snapshots of the images 0 to count-1.
func damage(ctx context.Context, r *offline.Root, count int) error {
	return r.AtOnce(ctx, func(ctx context.Context) error {
		for i := range count {
			img, err := newSynthetic(i)
			if err != nil {
				return err
			}
			if err := r.Snapshots.Remove(ctx, offline.ChainID(img.diffIDs)); err != nil {
				return err
			}
		}
		return nil
	})
}

// synthetic is an image that is written directly into a root.
type synthetic struct {
	repository    string
	ref, digested string
	target        ocispec.Descriptor
	config        digest.Digest
	diffIDs       []digest.Digest
	blobs         []blob
}

type blob struct {
	desc   ocispec.Descriptor
	data   []byte
	labels map[string]string
}

// bases is the number of base images of the synthetic images.
const bases = 20

// syntheticHost is a registry that gets no requests.
const syntheticHost = "registry.example.com"

// syntheticRef returns the reference of image i.
func syntheticRef(i int) string { return syntheticHost + "/" + syntheticRepository(i) + ":v1" }

func syntheticRepository(i int) string { return fmt.Sprintf("team-%02d/application-%05d", i%50, i) }

func newSynthetic(i int) (*synthetic, error) {
	s := &synthetic{repository: syntheticRepository(i), ref: syntheticRef(i)}
	var layers []ocispec.Descriptor
	for _, text := range []string{fmt.Sprint("base ", i%bases), fmt.Sprint("runtime ", i%bases), fmt.Sprint("application ", i)} {
		data, err := layerOf(text)
		if err != nil {
			return nil, err
		}
		// Not compressed, so that the digest of the layer is also its diff ID.
		d := s.add(ocispec.MediaTypeImageLayer, data, nil)
		layers, s.diffIDs = append(layers, d), append(s.diffIDs, d.Digest)
	}
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		return nil, err
	}
	spec := ocispec.Platform{OS: platform.OS, Architecture: platform.Architecture}
	config, err := s.addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: spec, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: s.diffIDs},
		Config: ocispec.ImageConfig{
			Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, Entrypoint: []string{"/app"}, User: "1000",
			Labels: map[string]string{"org.opencontainers.image.title": s.ref},
		},
	}, map[string]string{"containerd.io/gc.ref.snapshot." + snapshotter: offline.ChainID(s.diffIDs)})
	if err != nil {
		return nil, err
	}
	s.config = config.Digest
	refs := map[string]string{"containerd.io/gc.ref.content.config": config.Digest.String()}
	for j, l := range layers {
		refs[fmt.Sprintf("containerd.io/gc.ref.content.l.%d", j)] = l.Digest.String()
	}
	manifest, err := s.addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: layers,
	}, refs)
	if err != nil {
		return nil, err
	}
	refs = map[string]string{"containerd.io/gc.ref.content.m.0": manifest.Digest.String()}
	manifest.Platform = &spec
	s.target, err = s.addJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{manifest},
	}, refs)
	s.digested = syntheticHost + "/" + s.repository + "@" + s.target.Digest.String()
	return s, err
}

// layerOf returns a layer with one small file.
func layerOf(text string) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	if err := w.WriteHeader(&tar.Header{Name: text, Mode: 0o644, Size: int64(len(text))}); err != nil {
		return nil, err
	}
	if _, err := w.Write([]byte(text)); err != nil {
		return nil, err
	}
	err := w.Close()
	return buf.Bytes(), err
}

func (s *synthetic) add(mediaType string, data []byte, refs map[string]string) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	all := map[string]string{labels.LabelDistributionSource + "." + syntheticHost: s.repository}
	for k, v := range refs {
		all[k] = v
	}
	s.blobs = append(s.blobs, blob{desc: d, data: data, labels: all})
	return d
}

func (s *synthetic) addJSON(mediaType string, v any, refs map[string]string) (ocispec.Descriptor, error) {
	data, err := json.Marshal(v)
	return s.add(mediaType, data, refs), err
}
