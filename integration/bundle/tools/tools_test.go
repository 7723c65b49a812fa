package tools

import (
	"archive/tar"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"testing"

	"carvel.dev/imgpkg/pkg/imgpkg/lockconfig"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.podman.io/image/v5/copy"
	"go.podman.io/image/v5/signature"
	"go.podman.io/image/v5/transports/alltransports"
	"go.podman.io/image/v5/types"
	"oras.land/oras-go/v2"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/content/memory"
	"oras.land/oras-go/v2/content/oci"

	"github.com/imagepin/imagepin/integration/bundle"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

func TestOrasReadsABundle(t *testing.T) {
	t.Parallel()
	f := bundle.NewFleet(t)
	path := f.Bundle(t, "all.tar")
	store, err := oci.NewFromTar(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{f.App, f.Tool} {
		target := memory.New()
		desc, err := oras.Copy(t.Context(), store, ref, target, ref, oras.DefaultCopyOptions)
		if err != nil {
			t.Fatal(err)
		}
		if ref == f.App && desc.Digest != f.AppRoot {
			t.Errorf("%s is %s, want %s", ref, desc.Digest, f.AppRoot)
		}
	}
	readOwn(t, f, store, ownManifest(t, path))
}

// readOwn reads the lock in a bundle by the bundle's own manifest, as an artifact. imgpkg's library parses it.
func readOwn(t *testing.T, f *bundle.Fleet, store *oci.ReadOnlyStore, own ocispec.Descriptor) {
	t.Helper()
	children, err := content.Successors(t.Context(), store, own)
	if err != nil {
		t.Fatal(err)
	}
	if len(children) != 2 || children[1].MediaType != lock.MediaType {
		t.Fatalf("the bundle's own manifest has %+v", children)
	}
	text, err := content.FetchAll(t.Context(), store, children[1])
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := lockconfig.NewImagesLockFromBytes(text)
	if err != nil {
		t.Fatal(err)
	}
	if len(parsed.Images) != 2 {
		t.Errorf("imgpkg reads %d images, want 2", len(parsed.Images))
	}
	want, err := os.ReadFile(f.Lock)
	if err != nil || string(want) != string(text) {
		t.Errorf("the lock in the bundle differs: %v", err)
	}
}

// ownManifest returns the bundle's own manifest in index.json, which has no name.
func ownManifest(t *testing.T, path string) ocispec.Descriptor {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == ocispec.ImageIndexFile {
			break
		}
	}
	var index ocispec.Index
	if err := json.NewDecoder(r).Decode(&index); err != nil {
		t.Fatal(err)
	}
	return index.Manifests[len(index.Manifests)-1]
}

// TestSkopeoCopiesFromABundle runs what skopeo copy oci-archive:FILE:REFERENCE dir:DIR does.
func TestSkopeoCopiesFromABundle(t *testing.T) {
	t.Parallel()
	f := bundle.NewFleet(t)
	for _, file := range []string{f.Bundle(t, "all.tar"), f.Bundle(t, "all.tar.zst")} {
		for _, ref := range []string{f.App, f.Tool} {
			dir := t.TempDir()
			if err := skopeoCopy(testkit.Context(t), "oci-archive:"+file+":"+ref, "dir:"+dir, copy.CopyAllImages); err != nil {
				t.Fatalf("%s: %v", filepath.Base(file), err)
			}
			got, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
			if err != nil {
				t.Fatal(err)
			}
			if d := digest.FromBytes(got); ref == f.App && d != f.AppRoot {
				t.Errorf("%s is %s, want %s", ref, d, f.AppRoot)
			}
		}
	}
	own := f.Bundle(t, "own.tar", "--platform", images.HostPlatform())
	if err := skopeoCopy(testkit.Context(t), "oci-archive:"+own+":"+f.App, "dir:"+t.TempDir(), copy.CopySystemImage); err != nil {
		t.Error(err)
	}
}

func skopeoCopy(ctx context.Context, from, to string, selection copy.ImageListSelection) error {
	source, err := alltransports.ParseImageName(from)
	if err != nil {
		return err
	}
	target, err := alltransports.ParseImageName(to)
	if err != nil {
		return err
	}
	policy, err := signature.NewPolicyContext(&signature.Policy{Default: signature.PolicyRequirements{signature.NewPRInsecureAcceptAnything()}})
	if err != nil {
		return err
	}
	_, err = copy.Image(ctx, policy, target, source, &copy.Options{
		ImageListSelection: selection, ReportWriter: io.Discard, PreserveDigests: true, SourceCtx: &types.SystemContext{}, DestinationCtx: &types.SystemContext{},
	})
	return err
}
