package pull

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestExplained checks that the error of an image that was not unpacked names the media type that is the reason, and that other
// errors and images of other kinds keep their errors.
func TestExplained(t *testing.T) {
	const layerType, configType, other = ocispec.MediaTypeImageLayerGzip, ocispec.MediaTypeImageConfig, "application/octet-stream"
	missing, number := fmt.Errorf("not unpacked: %w", errdefs.ErrNotFound), errors.New(upstream.LayerCount+": 1 != 2")
	for name, c := range map[string]struct {
		config string
		layers []string
		err    error
		words  string // empty: the error stays
	}{
		"configuration":        {other, []string{layerType}, missing, `the configuration sha256:`},
		"layer":                {configType, []string{other}, missing, `the layer sha256:`},
		"no type":              {configType, []string{""}, missing, `has the media type "", which`},
		"a layer of two":       {configType, []string{layerType, other}, number, `has the media type "application/octet-stream"`},
		"an image":             {configType, []string{layerType}, missing, ""},
		"of another number":    {configType, []string{layerType}, number, ""},
		"removed meanwhile":    {configType, []string{layerType, other}, missing, ""},
		"another kind":         {other, []string{other}, missing, ""},
		"another error":        {other, []string{layerType}, errors.New("x"), ""},
		"missing, in registry": {other, []string{layerType}, RegistryError{missing}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t, "first")
			blobs := ctdtest.Blobs{}
			m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add(c.config, []byte("{}"))}
			for i, l := range c.layers {
				m.Layers = append(m.Layers, blobs.Add(l, fmt.Appendf(nil, "layer %d", i)))
			}
			manifest := blobs.AddJSON(ocispec.MediaTypeImageManifest, m)
			ctx, done := n.Lease(t)
			defer done()
			n.Write(ctx, t, blobs)
			err := explained(ctx, n.Content, manifest, c.err)
			var known *imagepin.Error
			switch {
			case c.words == "" && err != c.err:
				t.Errorf("got %v, want %v", err, c.err)
			case c.words != "" && (!errors.As(err, &known) || known.Reason != imagepin.ContentCorrupt || !strings.Contains(err.Error(), c.words)):
				t.Errorf("got %v, want %s", err, c.words)
			}
		})
	}
	if err := explained(t.Context(), nil, ocispec.Descriptor{}, nil); err != nil {
		t.Error(err)
	}
}
