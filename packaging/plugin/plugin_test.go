package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var platforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}

// plugin is a manifest of krew (sigs.k8s.io/krew/pkg/index.Plugin).
type plugin struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		Version, Homepage, Description, Caveats string
		ShortDescription                        string `yaml:"shortDescription"`
		Platforms                               []struct {
			URI, SHA256, Bin string
			Selector         struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			Files []struct{ From, To string }
		}
	}
}

// built builds archives with binaries that are named by their platform. It returns the directory with the output.
func built(t *testing.T) string {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	stage, out := t.TempDir(), t.TempDir()
	for _, p := range platforms {
		dir := filepath.Join(stage, strings.ReplaceAll(p, "/", "-"))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		name := "kubectl-imagepin"
		if strings.HasPrefix(p, "windows") {
			name += ".exe"
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("binary for "+p), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := func(kind string) func(string) ([]byte, error) {
		return func(p string) ([]byte, error) { return []byte(kind + " of " + p), nil }
	}
	b := &build{version: "0.1.0-dev", stage: stage, out: out, root: "../..", licenses: text("licenses"), bill: text("bill")}
	if err := b.run(platforms); err != nil {
		t.Fatal(err)
	}
	return out
}

// The rules are those of krew's validate-krew-manifest (sigs.k8s.io/krew/pkg/index/validation).
func TestManifest(t *testing.T) {
	out := built(t)
	text, err := os.ReadFile(filepath.Join(out, "imagepin.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p plugin
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(&p); err != nil {
		t.Fatal(err)
	}
	if p.APIVersion != "krew.googlecontainertools.github.com/v1alpha2" || p.Kind != "Plugin" || p.Metadata.Name != "imagepin" {
		t.Errorf("got %s %s %s", p.APIVersion, p.Kind, p.Metadata.Name)
	}
	if !regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`).MatchString(p.Spec.Version) {
		t.Errorf("version %q is not a semantic version with v", p.Spec.Version)
	}
	// krew prints it in a table.
	if s := p.Spec.ShortDescription; s == "" || len(s) > 80 || strings.HasSuffix(s, ".") {
		t.Errorf("short description %q", s)
	}
	var seen []string
	for _, pl := range p.Spec.Platforms {
		platform := pl.Selector.MatchLabels["os"] + "/" + pl.Selector.MatchLabels["arch"]
		seen = append(seen, platform)
		archive, err := os.ReadFile(filepath.Join(out, pl.URI[strings.LastIndexByte(pl.URI, '/')+1:]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256(archive)); pl.SHA256 != sum || len(pl.Selector.MatchLabels) != 2 {
			t.Errorf("%s: got SHA-256 %s and labels %v, want %s", platform, pl.SHA256, pl.Selector.MatchLabels, sum)
		}
		content := extract(t, archive)
		if got := content[pl.Bin]; got != "binary for "+platform {
			t.Errorf("%s: %s is %q", platform, pl.Bin, got)
		}
		if !strings.Contains(content["LICENSE"], "Apache License") || content["third-party-licenses.txt"] != "licenses of "+platform {
			t.Errorf("%s: the archive does not have the licenses", platform)
		}
		for _, f := range pl.Files {
			if _, ok := content[f.From]; !ok || f.To != "." {
				t.Errorf("%s: the archive does not have %s", platform, f.From)
			}
		}
		if len(pl.Files) != len(content) {
			t.Errorf("%s: the manifest names %d of %d files", platform, len(pl.Files), len(content))
		}
	}
	if slices.Sort(seen); !slices.Equal(seen, slices.Sorted(slices.Values(platforms))) {
		t.Errorf("got platforms %v", seen)
	}
}

func TestReproducible(t *testing.T) {
	first, second := built(t), built(t)
	entries, err := os.ReadDir(first)
	if err != nil {
		t.Fatal(err)
	}
	// An archive and a bill of materials for each platform, and the manifest.
	if len(entries) != 2*len(platforms)+1 {
		t.Errorf("%d files", len(entries))
	}
	for _, e := range entries {
		a, errA := os.ReadFile(filepath.Join(first, e.Name()))
		b, errB := os.ReadFile(filepath.Join(second, e.Name()))
		if errA != nil || errB != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs (%v, %v)", e.Name(), errA, errB)
		}
	}
}

// A manifest without all archives is an error, and so is an archive that is not in the manifest.
func TestIncompleteManifest(t *testing.T) {
	b := &build{version: "1.0.0", root: "../.."}
	sums := make(map[string]string)
	for i, p := range platforms {
		sums[p] = fmt.Sprintf("sum-%d", i)
	}
	sums["plan9/386"] = "0000"
	if _, err := b.manifest(sums); err == nil || !strings.Contains(err.Error(), "plan9/386") {
		t.Errorf("got %v, want that plan9/386 is not there", err)
	}
	delete(sums, "plan9/386")
	delete(sums, "linux/arm64")
	if _, err := b.manifest(sums); err == nil || !strings.Contains(err.Error(), "SHA256_LINUX_ARM64") {
		t.Errorf("got %v, want that SHA256_LINUX_ARM64 has no value", err)
	}
}

func extract(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for tr := tar.NewReader(zr); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s is of %s", h.Name, h.ModTime)
		}
		files[h.Name] = string(content)
	}
}
