package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// writeTarball writes a tarball of a package with one file.
func writeTarball(t *testing.T, path, file, content string) {
	t.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	if err := tw.WriteHeader(&tar.Header{Name: file, Size: int64(len(content)), Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(tw, content); err != nil {
		t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestImage builds the image twice, pushes it to a registry, and pulls it for each platform.
func TestImage(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	dist := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		writeTarball(t, filepath.Join(dist, "imagepin-1.2.3-linux-"+arch+".tar.gz"), "usr/bin/imagepin", "command for "+arch)
		writeTarball(t, filepath.Join(dist, "imagepin-containerd-1.2.3-linux-"+arch+".tar.gz"), "usr/lib/imagepin/bin/containerd", "containerd for "+arch)
	}
	server := httptest.NewServer(registry.New())
	defer server.Close()
	ref := strings.TrimPrefix(server.URL, "http://") + "/imagepin/node:v1.2.3"
	var archives [][]byte
	for range 2 {
		b := build{version: "1.2.3", dist: dist, out: t.TempDir(), push: ref}
		if err := b.run([]string{"amd64", "arm64"}); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(b.out)
		if err != nil || len(files) != 1 {
			t.Fatalf("got files %v (%v), want one", files, err)
		}
		archive, err := os.ReadFile(filepath.Join(b.out, "imagepin-node-1.2.3.oci.tar"))
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, archive)
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two builds differ")
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		img, err := remote.Image(parsed, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil || config.Architecture != arch || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/imagepin"}) {
			t.Errorf("%s: got configuration %+v (%v)", arch, config, err)
		}
		want := map[string]string{"usr/bin/imagepin": "command for " + arch, "usr/lib/imagepin/bin/containerd": "containerd for " + arch}
		if got := filesOf(t, img); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got files %v, want %v", arch, got, want)
		}
	}
	if err := (&build{version: "1.2.3", dist: dist, out: t.TempDir()}).run([]string{"riscv64"}); err == nil {
		t.Error("an architecture without packages is accepted")
	}
}

func filesOf(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	files := make(map[string]string)
	flat := mutate.Extract(img)
	defer flat.Close()
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content)
	}
}
