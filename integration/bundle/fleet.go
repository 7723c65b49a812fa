// Package bundle tests imagepin bundle: it writes a bundle from a registry, which the tools of others read. The module tools has
// the tests with tools that have many dependencies.
package bundle

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// Fleet is a registry with images for several platforms, and a lock of them.
type Fleet struct {
	Reg     *registry.Registry
	App     string // a reference with a tag, of an index with an attestation
	AppRoot digest.Digest
	Tool    string // a reference with a tag, of a manifest
	Dir     string
	Lock    string // its file
}

// Foreign is a platform of an image that is not the machine's.
const Foreign = "linux/s390x"

// NewFleet starts a registry with images, and writes their lock.
func NewFleet(t testing.TB) *Fleet {
	t.Helper()
	f := &Fleet{Reg: testkit.Registry(t), Dir: t.TempDir()}
	own, other := testkit.App(t, images.Options{Version: "1"}), testkit.App(t, images.Options{Version: "1", Platform: Foreign})
	attestation, err := images.Attestation(own)
	if err != nil {
		t.Fatal(err)
	}
	index, err := images.Index(images.OCI, images.Entry{Image: own}, images.Entry{Image: other}, attestation)
	if err != nil {
		t.Fatal(err)
	}
	f.App, f.Tool = f.Reg.Ref("shop/app:v1"), f.Reg.Ref("tool:v2")
	f.AppRoot = digest.Digest(testkit.Push(t, f.Reg, "shop/app:v1", index).String())
	tool := testkit.Push(t, f.Reg, "tool:v2", testkit.App(t, images.Options{Version: "2"}))
	f.Lock = f.WriteLock(t, "images.lock.yaml", map[string]digest.Digest{f.App: f.AppRoot, f.Tool: digest.Digest(tool.String())})
	return f
}

// WriteLock writes a lock of references with a tag to a file, and returns its path.
func (f *Fleet) WriteLock(t testing.TB, name string, digests map[string]digest.Digest) string {
	t.Helper()
	var all []lock.Image
	for id, d := range digests {
		ref, err := imagepin.ParseReference(id)
		if err != nil {
			t.Fatal(err)
		}
		canonical, err := reference.WithDigest(reference.TrimNamed(ref), d)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lock.Image{ID: id, Ref: canonical})
	}
	l, err := lock.New(all)
	if err != nil {
		t.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(f.Dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Imagepin runs the command.
func Imagepin(t testing.TB, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(testkit.Context(t), filepath.Join(node.BinDir(), "imagepin"), args...)
	cmd.Env = append(os.Environ(), "DOCKER_CONFIG="+t.TempDir())
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Bundle writes a bundle and verifies it. It returns the file.
func (f *Fleet) Bundle(t testing.TB, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(f.Dir, name)
	if out, err := Imagepin(t, append([]string{"bundle", f.Lock, "-o", path}, args...)...); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := Imagepin(t, "bundle", "verify", path)
	if err != nil || !strings.HasSuffix(out, path+": OK\n") {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}
