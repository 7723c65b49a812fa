package tools

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	imgpkg "carvel.dev/imgpkg/pkg/imgpkg/cmd"
	"github.com/cppforlife/go-cli-ui/ui"

	"github.com/imagepin/imagepin/integration/bundle"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// TestImgpkgCopiesALock copies the images of a lock to another repository with imgpkg. The lock that imgpkg writes has the same
// references and digests.
func TestImgpkgCopiesALock(t *testing.T) {
	t.Parallel()
	f := bundle.NewFleet(t)
	repository := strings.SplitN(f.App, "/", 2)[0] + "/copies"
	out := filepath.Join(t.TempDir(), "copied.yaml")
	cmd := imgpkg.NewDefaultImgpkgCmd(ui.NewConfUI(ui.NewNoopLogger()))
	cmd.SetArgs([]string{"copy", "--lock", f.Lock, "--to-repo", repository, "--registry-insecure", "--lock-output", out})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, after := readLock(t, f.Lock), readLock(t, out)
	if len(after.Images) != len(before.Images) {
		t.Fatalf("imgpkg wrote %d images, want %d", len(after.Images), len(before.Images))
	}
	for n, i := range after.Images {
		was := before.Images[n]
		if i.ID != was.ID || i.Ref.Digest() != was.Ref.Digest() || i.Ref.Name() != repository {
			t.Errorf("imgpkg wrote %q at %s, was %q at %s", i.ID, i.Ref, was.ID, was.Ref)
		}
	}
}

func readLock(t *testing.T, path string) *lock.Lock {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	l, err := lock.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
