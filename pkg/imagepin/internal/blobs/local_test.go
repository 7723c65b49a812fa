package blobs_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
)

// opened is a content store that counts how often it opens a file.
type opened struct {
	content.Store
	n int
}

func (o *opened) ReaderAt(ctx context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	o.n++
	return o.Store.ReaderAt(ctx, d)
}

// TestWithLocalFiles checks that files are checked directly, and opened through the store only if they are not in the
// expected state.
func TestWithLocalFiles(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	whole, cut, missing, closed := all.Add("", []byte("whole")), all.Add("", []byte("cut")), all.Add("", []byte("missing")), all.Add("", []byte("closed"))
	n.Write(ctx, t, all)
	for _, err := range []error{os.Truncate(n.File(cut.Digest), 1), os.Remove(n.File(missing.Digest)), os.Chmod(n.File(closed.Digest), 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(dir string, d digest.Digest, size int64) (opens int, _ error) {
		under := &opened{Store: n.Content}
		err := blobs.Check(ctx, blobs.WithLocalFiles(func() string { return dir }, under), d, size)
		return under.n, err
	}
	if opens, err := check(n.ContentDir(), whole.Digest, whole.Size); err != nil || opens > 0 {
		t.Errorf("intact: %v, opened %d times, want 0", err, opens)
	}
	damage := new(blobs.Damage)
	if opens, err := check(n.ContentDir(), cut.Digest, cut.Size); !errors.As(err, &damage) || damage.Missing || opens != 1 {
		t.Errorf("cut: got %v, opened %d times, want damage, 1", err, opens)
	}
	if opens, err := check(n.ContentDir(), missing.Digest, missing.Size); !errors.As(err, &damage) || !damage.Missing || opens != 1 {
		t.Errorf("missing: got %v, opened %d times, want missing, 1", err, opens)
	}
	if opens, _ := check(n.ContentDir(), closed.Digest, closed.Size); opens != 1 {
		t.Errorf("no permission: opened %d times, want 1", opens)
	}
	for _, dir := range []string{"", t.TempDir()} {
		if opens, err := check(dir, whole.Digest, whole.Size); err != nil || opens != 1 {
			t.Errorf("directory %q: %v, opened %d times, want 1", dir, err, opens)
		}
	}
	if _, err := check(n.ContentDir(), "../../x", 1); err == nil {
		t.Error("an invalid digest: got no error")
	}
}
