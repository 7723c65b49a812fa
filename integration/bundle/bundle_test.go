package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/match"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// layoutDir extracts a bundle with tar, and returns the directory.
func layoutDir(t *testing.T, path string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", path, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return dir
}

func TestCtrImportsABundle(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	all, own := f.Bundle(t, "all.tar"), f.Bundle(t, "own.tar", "--platform", images.HostPlatform())
	compressed := f.Bundle(t, "all.tar.zst")
	for name, c := range map[string]struct {
		file string
		args []string
	}{
		"all platforms, those of the node": {all, nil},
		"all platforms, all":               {all, []string{"--all-platforms"}},
		"one platform":                     {own, nil},
		"one platform, local":              {own, []string{"--local"}},
		"all platforms, local":             {all, []string{"--local"}},
		"all platforms, all, local":        {all, []string{"--local", "--all-platforms"}},
		"one platform, chosen":             {own, []string{"--platform", images.HostPlatform()}},
		"compressed":                       {compressed, nil},
		"without unpacking":                {all, []string{"--no-unpack"}},
		"without unpacking, local, own":    {own, []string{"--local", "--no-unpack"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testkit.NewRig(t, node.Options{})
			f.Reg.Down()
			t.Cleanup(func() {
				if err := f.Reg.Up(); err != nil {
					t.Error(err)
				}
			})
			out, err := r.Ctr(r.Ctx, append(append([]string{"images", "import"}, c.args...), c.file)...)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			listed, err := r.Ctr(r.Ctx, "images", "ls")
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{f.App, f.Tool} {
				if !strings.Contains(listed, want+" ") {
					t.Errorf("no image %s: %s", want, listed)
				}
			}
			if !strings.Contains(listed, f.AppRoot.String()) {
				t.Errorf("the index has another digest: %s", listed)
			}
			if slices.Contains(c.args, "--no-unpack") {
				return // the CRI lists unpacked images
			}
			testkit.Eventually(t, "the CRI lists the image", func(ctx context.Context) (bool, error) {
				img, err := r.ImageStatus(ctx, f.App, "")
				return img != nil, err
			})
		})
	}
}

func TestGoContainerregistryReadsABundle(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	dir := layoutDir(t, f.Bundle(t, "all.tar"))
	root, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := root.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 3 {
		t.Fatalf("index.json has %d descriptors, want 2 images and the bundle's own manifest", len(manifest.Manifests))
	}
	for _, d := range manifest.Manifests {
		if d.MediaType.IsIndex() {
			index, err := root.ImageIndex(d.Digest)
			if err != nil {
				t.Fatal(err)
			}
			checkImages(t, index)
			continue
		}
		if d.ArtifactType != "" {
			continue // not an image
		}
		image, err := root.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
	}
	p, err := layout.FromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	index, err := p.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	var named []v1.Descriptor
	for _, d := range manifest.Manifests {
		if match.Name(f.App)(d) {
			named = append(named, d)
		}
	}
	if len(named) != 1 || named[0].Digest.String() != f.AppRoot.String() {
		t.Errorf("%s is %v in %v", f.App, named, index)
	}
}

// checkImages checks the images of an index for Linux. Its attestation is not an image.
func checkImages(t *testing.T, index v1.ImageIndex) {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range manifest.Manifests {
		image, err := index.Image(d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		if d.Platform.OS != "linux" {
			continue
		}
		if err := validate.Image(image); err != nil {
			t.Error(err)
		}
	}
}

// TestOneBundleForEachArgument checks that a bundle does not depend on the time or on the registry's speed, and that zstd
// decompresses it.
func TestOneBundleForEachArgument(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	plain, compressed := f.Bundle(t, "a.tar"), f.Bundle(t, "a.tar.zst")
	want := read(t, plain)
	if !bytes.Equal(read(t, f.Bundle(t, "b.tar")), want) || !bytes.Equal(read(t, f.Bundle(t, "b.tar.zst")), read(t, compressed)) {
		t.Error("the second bundle differs")
	}
	d, err := zstd.NewReader(bytes.NewReader(read(t, compressed)))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got, err := io.ReadAll(d)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the decompressed bundle differs: %v", err)
	}
	command := exec.CommandContext(t.Context(), "zstd", "-d", "-q", "-c", compressed)
	if out, err := command.Output(); err != nil || !bytes.Equal(out, want) {
		t.Errorf("zstd -d: %v", err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// report is the output of imagepin bundle verify -o json.
type report struct {
	Lock      digest.Digest
	Platforms []string
	Absent    []struct{ Platform string }
	Since     digest.Digest
	Omitted   []digest.Digest
}

func verified(t *testing.T, path string) report {
	t.Helper()
	out, err := Imagepin(t, "bundle", "verify", path, "-o", "json")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestVerifyReportsWhatIsAbsent(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	r := verified(t, f.Bundle(t, "own.tar.zst", "--platform", images.HostPlatform()))
	var absent []string
	for _, a := range r.Absent {
		absent = append(absent, a.Platform)
	}
	slices.Sort(absent)
	if !slices.Equal(absent, []string{Foreign, "unknown/unknown"}) || !slices.Equal(r.Platforms, []string{images.HostPlatform()}) {
		t.Errorf("report %+v", r)
	}
}

func TestSinceOmitsLayers(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	f.Bundle(t, "all.tar.zst")
	next := testkit.Push(t, f.Reg, "shop/app:v2", testkit.App(t, images.Options{Version: "2"}))
	earlier := f.Lock
	f.Lock = f.WriteLock(t, "next.lock.yaml", map[string]digest.Digest{f.Reg.Ref("shop/app:v2"): digest.Digest(next.String())})
	r := verified(t, f.Bundle(t, "update.tar.zst", "--since", earlier))
	if len(r.Omitted) == 0 || r.Since != digest.FromBytes(read(t, earlier)) {
		t.Errorf("report %+v", r)
	}
}

// TestInterruptedBundleContinuesWithARangeRequest cuts the connection in a large layer, and the second run continues.
func TestInterruptedBundleContinuesWithARangeRequest(t *testing.T) {
	t.Parallel()
	f := NewFleet(t)
	large := testkit.App(t, images.Options{Random: []images.Random{{Seed: 1, Files: 1, Size: 40 << 20}}})
	d := testkit.Push(t, f.Reg, "large:v1", large)
	f.Lock = f.WriteLock(t, "large.lock.yaml", map[string]digest.Digest{f.Reg.Ref("large:v1"): digest.Digest(d.String())})
	want := read(t, f.Bundle(t, "whole.tar.zst"))
	path := filepath.Join(f.Dir, "cut.tar.zst")
	if err := os.WriteFile(path+".partial", want[:23<<20], 0o600); err != nil {
		t.Fatal(err)
	}
	f.Reg.Reset()
	out, err := Imagepin(t, "bundle", f.Lock, "-o", path)
	if err != nil || !strings.Contains(out, "Resumed:") {
		t.Fatalf("%v: %s", err, out)
	}
	if !bytes.Equal(read(t, path), want) {
		t.Error("the bundle differs from one that was not interrupted")
	}
	var ranges []string
	for _, q := range f.Reg.Requests() {
		if q.Range != "" {
			ranges = append(ranges, q.Range)
		}
	}
	if len(ranges) != 1 || ranges[0] == "bytes=0-" {
		t.Errorf("range requests %q, want one from the middle of the layer", ranges)
	}
}
