package compare

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// local returns a reader of a node without a registry.
func local(t *testing.T, blobs ctdtest.Blobs) (*Reader, *ctdtest.Node) {
	t.Helper()
	n := ctdtest.New(t)
	n.Write(n.Context(t), t, blobs)
	ref, err := reference.ParseNormalizedNamed("registry.example/shop/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	return &Reader{Content: n.Content, Repository: ref}, n
}

func anyPlatform(ocispec.Platform) bool { return true }

// The platforms of nested indexes are compared, and artifacts are not images.
func TestCompare(t *testing.T) {
	b := ctdtest.Blobs{}
	amd, arm, same := b.Image("linux/amd64", "1", nil), b.Image("linux/arm64", "1", nil), b.Image("linux/s390x", "1", nil)
	newAmd, riscv := b.Image("linux/amd64", "2", nil), b.Image("linux/riscv64", "2", nil)
	attestation := b.Image("linux/386", "attestation", nil).Manifest
	attestation.Annotations = map[string]string{blobs.AttestationAnnotation: "attestation-manifest"}
	artifact := b.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: b.Add("application/vnd.example", []byte("no JSON"))})
	plain := newAmd.Manifest
	plain.Platform = nil // only its configuration has it
	from := b.Index(amd.Manifest, arm.Manifest, same.Manifest)
	to := b.Index(attestation, artifact, b.Index(plain, riscv.Manifest), same.Manifest)
	r, n := local(t, b)
	ctx := n.Context(t)
	got, err := r.Compare(ctx, from, to, func(p ocispec.Platform) bool { return p.Architecture != "s390x" })
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, p := range got {
		lines = append(lines, fmt.Sprint(p.Name, " ", p.Change, " ", p.Compared, " ", len(p.Layers), " ", p.FromSize > 0, " ", p.ToSize > 0))
	}
	want := "linux/amd64 changed true 2 true true\nlinux/riscv64 added true 1 false true\nlinux/s390x same false 0 false false\nlinux/arm64 removed true 1 true false"
	if text := strings.Join(lines, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	size := func(img ctdtest.Image) int64 { return img.Manifest.Size + img.Config.Size + img.Layer.Size }
	if p := got[0]; p.FromSize != size(amd) || p.ToSize != size(newAmd) || p.From != amd.Manifest.Digest || p.To != newAmd.Manifest.Digest {
		t.Errorf("got %+v, want sizes %d and %d", p, size(amd), size(newAmd))
	}
	if got, err := r.Compare(ctx, amd.Manifest, from, anyPlatform); err != nil || len(got) != 3 || got[0].Change != Same {
		t.Errorf("a manifest and an index: got %+v, %v", got, err)
	}
}

// Roots are recognized without a media type. What is not an image is an error that names the reference and the digest.
func TestRoot(t *testing.T) {
	b := ctdtest.Blobs{}
	img := b.Image("linux/amd64", "1", nil)
	untyped := b.AddJSON("", map[string]any{"schemaVersion": 2, "manifests": []ocispec.Descriptor{img.Manifest}})
	layer := b.Add("", []byte("a layer"))
	r, n := local(t, b)
	ctx := n.Context(t)
	for d, want := range map[digest.Digest]string{untyped.Digest: ocispec.MediaTypeImageIndex, img.Manifest.Digest: ocispec.MediaTypeImageManifest} {
		if got, err := r.Root(ctx, d); err != nil || got.MediaType != want {
			t.Errorf("%s: got %+v, %v, want %s", d, got, err, want)
		}
	}
	for _, d := range []ocispec.Descriptor{layer, img.Config} {
		_, err := r.Root(ctx, d.Digest)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(e.Error(), d.Digest.String()) || e.Ref != r.Repository.String() {
			t.Errorf("%s: got %v, want ContentCorrupt", d.Digest, err)
		}
	}
}

// An index with too many levels, entries or bytes ends the comparison.
func TestHostileIndexes(t *testing.T) {
	b := ctdtest.Blobs{}
	img := b.Image("linux/amd64", "1", nil)
	deep := img.Manifest
	for range blobs.MaxNesting + 1 {
		deep = b.Index(deep)
	}
	var many []ocispec.Descriptor
	for range blobs.MaxWalked {
		many = append(many, img.Manifest)
	}
	huge := b.Index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: img.Manifest.Digest, Size: blobs.MaxDocument + 1})
	none := b.Index(ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: "sha256:..", Size: 1})
	wide := b.Index(many...)
	var large []ocispec.Descriptor
	for i := range maxTotal/blobs.MaxDocument + 1 {
		config := b.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
			Platform: ocispec.Platform{OS: "linux", Architecture: fmt.Sprint("arch", i)}, Author: strings.Repeat("a", blobs.MaxDocument-200),
		})
		manifest := b.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{Config: config})
		manifest.MediaType = ocispec.MediaTypeImageManifest
		large = append(large, manifest)
	}
	bytes := b.Index(large...)
	r, n := local(t, b)
	for name, root := range map[string]ocispec.Descriptor{"deep": deep, "wide": wide, "huge": huge, "no digest": none, "large": bytes} {
		_, err := r.Compare(n.Context(t), root, img.Manifest, anyPlatform)
		var e *imagepin.Error
		if !errors.As(err, &e) || e.Reason != imagepin.ContentCorrupt || (name == "large") != strings.Contains(e.Error(), "more than 33554432 bytes") {
			t.Errorf("%s: got %v, want ContentCorrupt", name, err)
		}
		r.total = 0
	}
}

// A document whose file has changed is not used.
func TestDamagedDocument(t *testing.T) {
	b := ctdtest.Blobs{}
	img := b.Image("linux/amd64", "1", nil)
	r, n := local(t, b)
	path := n.File(img.Manifest.Digest)
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err == nil {
		text[len(text)/2] ^= 1
		err = os.WriteFile(path, text, 0o400)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.local(n.Context(t), img.Manifest.Digest); err == nil || !strings.Contains(err.Error(), "does not match its digest") {
		t.Errorf("got %v, want an error", err)
	}
}
