package pull

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	maxNesting            = blobs.MaxNesting
	maxWalked             = blobs.MaxWalked
	attestationAnnotation = blobs.AttestationAnnotation
)

// runtimes returns the runtimes of an amd64 node: the native one, and one for each configured platform.
func runtimes(t testing.TB, configured ...string) *runtimeplatform.Set {
	t.Helper()
	handlers := []runtimeplatform.Handler{{Name: "runc", Snapshotter: "first"}}
	for _, p := range configured {
		handlers = append(handlers, runtimeplatform.Handler{Name: strings.ReplaceAll(p, "/", "-"), Platform: p, Snapshotter: "first"})
	}
	set, err := runtimeplatform.New("runc", handlers, runtimeplatform.Host{
		Spec: platforms.MustParse("linux/amd64"), Matcher: platforms.Only(platforms.MustParse("linux/amd64")),
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func runtimeOf(t testing.TB, platform string) runtimeplatform.Runtime {
	t.Helper()
	if platform == "" {
		return runtimes(t).Default()
	}
	rt, err := runtimes(t, platform).Lookup(strings.ReplaceAll(platform, "/", "-"))
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

func TestChoose(t *testing.T) {
	blobs := ctdtest.Blobs{}
	image := func(platform string) ocispec.Descriptor { return blobs.Image(platform, "app", nil).Manifest }
	plain := func(d ocispec.Descriptor) ocispec.Descriptor {
		d.Platform = nil
		return d
	}
	named := func(d ocispec.Descriptor, platform string) ocispec.Descriptor {
		p := platforms.MustParse(platform)
		d.Platform = &p
		return d
	}
	amd64, i386, arm64, armv6, armv7 := image("linux/amd64"), image("linux/386"), image("linux/arm64"), image("linux/arm/v6"), image("linux/arm/v7")
	windows := image("windows/amd64")
	attestation := named(plain(image("linux/amd64")), "linux/amd64")
	attestation.Annotations = map[string]string{attestationAnnotation: "attestation-manifest"}
	artifact := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add("application/vnd.example.artifact", []byte("{}")),
	})
	signature := blobs.Add("application/vnd.example.signature", []byte("signed"))
	onlyArm := blobs.Index(arm64, armv7)
	deep := blobs.Index(blobs.Index(blobs.Index(amd64)))

	for name, c := range map[string]struct {
		root     ocispec.Descriptor
		platform string // configured; empty for the native one
		want     ocispec.Descriptor
		path     int // number of descriptors from the root to want
	}{
		"platform of an index":                     {blobs.Index(arm64, amd64, windows), "", amd64, 2},
		"another platform of an index":             {blobs.Index(amd64, arm64), "linux/arm64", arm64, 2},
		"best match":                               {blobs.Index(i386, amd64), "", amd64, 2},
		"386 without amd64":                        {blobs.Index(arm64, i386), "", i386, 2},
		"best arm variant":                         {blobs.Index(armv6, armv7), "linux/arm/v7", armv7, 2},
		"older arm variant":                        {blobs.Index(armv6, amd64), "linux/arm/v7", armv6, 2},
		"arm on arm64":                             {blobs.Index(amd64, armv7), "linux/arm64", armv7, 2},
		"attestation in the index":                 {blobs.Index(attestation, amd64), "", amd64, 2},
		"nested index":                             {blobs.Index(blobs.Index(arm64, amd64)), "", amd64, 3},
		"deeply nested":                            {deep, "", amd64, 4},
		"nested index with a platform":             {blobs.Index(named(onlyArm, "linux/arm64"), named(blobs.Index(amd64), "linux/amd64")), "", amd64, 3},
		"nested index without a match first":       {blobs.Index(onlyArm, blobs.Index(amd64)), "", amd64, 3},
		"nested index with a wrong platform first": {blobs.Index(named(onlyArm, "linux/amd64"), blobs.Index(amd64)), "", amd64, 3},
		"nested artifact first":                    {blobs.Index(artifact, signature, amd64), "", amd64, 2},
		"entry without platform":                   {blobs.Index(plain(arm64), plain(amd64)), "", amd64, 2},
		"entry without platform comes last":        {blobs.Index(plain(amd64), i386), "", i386, 2},
		"manifest, native":                         {plain(amd64), "", amd64, 1},
		"manifest of another platform, native":     {plain(arm64), "", arm64, 1},
		"manifest, configured, match":              {plain(arm64), "linux/arm64", arm64, 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			ctx, done := n.Lease(t)
			defer done()
			n.Write(ctx, t, blobs)
			opened := 0
			ch := &chooser{content: n.Content, runtime: runtimeOf(t, c.platform), ensure: func(context.Context, ocispec.Descriptor) error {
				opened++
				return nil
			}}
			path, err := ch.choose(ctx, c.root)
			if err != nil {
				t.Fatal(err)
			}
			if len(path) != c.path || path[0].Digest != c.root.Digest || path[len(path)-1].Digest != c.want.Digest {
				t.Errorf("got path %v, want %d descriptors to %s", path, c.path, c.want.Digest)
			}
			if c.path == 1 && c.platform == "" && opened != 0 {
				t.Errorf("opened a native manifest %d times, want 0", opened)
			}
			got, err := ChooseLocal(ctx, n.Content, c.root, runtimeOf(t, c.platform))
			if err != nil || got.Digest != c.want.Digest {
				t.Errorf("ChooseLocal: got %s, %v, want %s", got.Digest, err, c.want.Digest)
			}
		})
	}

	noPlatforms := blobs.Index()
	var loop ocispec.Descriptor
	loop = amd64
	for range maxNesting + 2 {
		loop = blobs.Index(loop)
	}
	var many []ocispec.Descriptor
	for range maxWalked {
		many = append(many, plain(arm64))
	}
	missing := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("missing"), Size: 7}
	noDigest := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Size: 7, Digest: "sha256:short", Platform: amd64.Platform}
	for name, c := range map[string]struct {
		root     ocispec.Descriptor
		platform string
		name     imagepin.Reason // empty for an error of another type
		class    error
		text     string
	}{
		"no match":                       {blobs.Index(windows, arm64, arm64), "", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "offers linux/arm64, windows/amd64"},
		"no match in nested indexes":     {blobs.Index(onlyArm, windows), "", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "linux/arm/v7, linux/arm64, windows/amd64"},
		"only attestations":              {blobs.Index(attestation), "", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "no platform"},
		"empty index":                    {noPlatforms, "", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "no platform"},
		"manifest, configured, no match": {plain(amd64), "linux/arm64", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "offers linux/amd64"},
		"artifact, configured":           {artifact, "linux/arm64", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "no platform"},
		"root of another media type":     {signature, "", imagepin.NoMatchingPlatform, errdefs.ErrNotFound, "no platform"},
		"too deep":                       {loop, "", "", errdefs.ErrResourceExhausted, "too many levels"},
		"too many":                       {blobs.Index(append(many, plain(amd64))...), "", "", errdefs.ErrResourceExhausted, "too many levels"},
		"index is not JSON":              {blobs.Add(ocispec.MediaTypeImageIndex, []byte("<html>")), "", imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, "index"},
		"index is a manifest":            {blobs.AddJSON(ocispec.MediaTypeImageIndex, map[string]any{"config": map[string]any{}, "layers": []any{}}), "", imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, "index"},
		"manifest is not JSON":           {blobs.Add(ocispec.MediaTypeImageManifest, []byte("<html>")), "linux/arm64", imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, "manifest"},
		"configuration is not JSON":      {blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add(ocispec.MediaTypeImageConfig, []byte("!"))}), "linux/arm64", imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, "configuration"},
		"entry with an invalid digest":   {blobs.Index(noDigest), "", imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition, "index"},
		"missing root":                   {missing, "", "", errdefs.ErrNotFound, "missing"},
		"missing nested index":           {blobs.Index(missing, blobs.Index(amd64)), "", "", errdefs.ErrNotFound, "missing"},
	} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			ctx, done := n.Lease(t)
			defer done()
			n.Write(ctx, t, blobs)
			ch := &chooser{content: n.Content, runtime: runtimeOf(t, c.platform), ensure: func(ctx context.Context, d ocispec.Descriptor) error {
				if d.Digest == missing.Digest {
					return errors.Join(errors.New("missing"), errdefs.ErrNotFound)
				}
				return nil
			}}
			path, err := ch.choose(ctx, c.root)
			var e *imagepin.Error
			if err == nil || errors.As(err, &e) != (c.name != "") || (e != nil && e.Reason != c.name) || errdefs.Resolve(err) != c.class || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, %v\nwant %s, %v with %q", path, err, c.name, c.class, c.text)
			}
		})
	}
}

// TestOfferedPlatformsAreBounded checks that the error is short for an index with many or long platforms.
func TestOfferedPlatformsAreBounded(t *testing.T) {
	entry := func(architecture string) ocispec.Descriptor {
		return ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(architecture), Size: 7,
			Platform: &ocispec.Platform{OS: "linux", Architecture: architecture},
		}
	}
	var many, long []ocispec.Descriptor
	for n := range 5000 {
		many = append(many, entry(fmt.Sprintf("a%04d", n)), entry(fmt.Sprintf("a%04d", n)))
	}
	for n := range 50 {
		long = append(long, entry(fmt.Sprintf("b%02d", n)+strings.Repeat("→", 7000)))
	}
	for name, c := range map[string]struct {
		entries []ocispec.Descriptor
		texts   []string
	}{
		"many": {many, []string{"offers linux/a0000, linux/a0001, ", ", linux/a0015 and 4984 more\n"}},
		"long": {long, []string{"offers linux/b00", ", linux/b15", "bytes cut", " and 34 more\n"}},
		"few":  {many[:32], []string{"linux/a0015\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := ctdtest.New(t)
			blobs := ctdtest.Blobs{}
			root := blobs.Index(c.entries...)
			ctx, done := n.Lease(t)
			defer done()
			n.Write(ctx, t, blobs)
			ch := &chooser{content: n.Content, runtime: runtimeOf(t, ""), ensure: func(context.Context, ocispec.Descriptor) error { return nil }}
			_, err := ch.choose(ctx, root)
			if err == nil || len(err.Error()) > imagepin.MaxErrorText {
				t.Fatalf("got %.300v, want an error of at most %d bytes", err, imagepin.MaxErrorText)
			}
			for _, text := range c.texts {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the error does not contain %q: %v", text, err)
				}
			}
		})
	}
}

func TestChooseLocalNeedsTheManifest(t *testing.T) {
	n := ctdtest.New(t)
	blobs := ctdtest.Blobs{}
	amd64, arm64 := blobs.Image("linux/amd64", "a", nil), blobs.Image("linux/arm64", "a", nil)
	root := blobs.Index(amd64.Manifest, arm64.Manifest)
	delete(blobs, arm64.Manifest.Digest)
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	if got, err := ChooseLocal(ctx, n.Content, root, runtimeOf(t, "")); err != nil || got.Digest != amd64.Manifest.Digest {
		t.Errorf("got %s, %v, want %s", got.Digest, err, amd64.Manifest.Digest)
	}
	if _, err := ChooseLocal(ctx, n.Content, root, runtimeOf(t, "linux/arm64")); !errdefs.IsNotFound(err) {
		t.Errorf("missing manifest: got %v, want a NotFound error", err)
	}
}

func TestDescribe(t *testing.T) {
	n := ctdtest.New(t)
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "a", nil)
	root := blobs.Index(img.Manifest)
	noLayers := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    blobs.AddJSON(ocispec.MediaTypeImageConfig, map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{"User": "1:2"}}),
	})
	artifact := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add("application/vnd.wasm.config.v0+json", []byte(`{"rootfs":{"diff_ids":["`+img.ChainID.String()+`"]}}`)),
	})
	notJSON := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add("application/vnd.example", []byte("MZ")),
	})
	damaged := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: blobs.Add(ocispec.MediaTypeImageConfig, []byte("{")),
	})
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)

	e, err := Describe(ctx, n.Content, img.Manifest)
	want := img.Manifest.Size + img.Config.Size + img.Layer.Size
	if err != nil || e.Manifest != img.Manifest.Digest || e.ImageID != img.Config.Digest || e.ChainID != img.ChainID || e.Size != want {
		t.Errorf("unexpected entry %+v, %v", e, err)
	}
	if e, m, err := DescribeLocal(ctx, n.Content, root, runtimeOf(t, "")); err != nil || m.Digest != img.Manifest.Digest || e.Size != want+root.Size {
		t.Errorf("DescribeLocal: unexpected entry %+v, %v", e, err)
	}
	if e, _, err := DescribeLocal(ctx, n.Content, root, runtimeOf(t, "linux/amd64/v2")); err != nil || e.Size != want {
		t.Errorf("DescribeLocal for a configured platform: unexpected entry %+v, %v", e, err)
	}
	if e, err := Describe(ctx, n.Content, noLayers); err != nil || e.ChainID != "" || e.User != "1:2" {
		t.Errorf("without layers: unexpected entry %+v, %v", e, err)
	}
	if e, err := Describe(ctx, n.Content, artifact); err != nil || e.ChainID != "" || e.ImageID == "" || e.User != "" {
		t.Errorf("artifact: unexpected entry %+v, %v", e, err)
	}
	for name, d := range map[string]ocispec.Descriptor{"not JSON": notJSON, "damaged": damaged} {
		var ie *imagepin.Error
		if _, err := Describe(ctx, n.Content, d); !errors.As(err, &ie) || ie.Reason != imagepin.ContentCorrupt {
			t.Errorf("%s: got %v, want reason ContentCorrupt", name, err)
		}
	}
	if _, err := Describe(ctx, n.Content, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1}); !errdefs.IsNotFound(err) {
		t.Errorf("missing: got %v, want a NotFound error", err)
	}
}
