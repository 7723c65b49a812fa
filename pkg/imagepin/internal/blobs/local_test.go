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

// opened counts how often a content store opens a file.
type opened struct {
	content.Store
	n int
}

func (o *opened) ReaderAt(ctx context.Context, d ocispec.Descriptor) (content.ReaderAt, error) {
	o.n++
	return o.Store.ReaderAt(ctx, d)
}

// TestAt looks at files directly: only a file that is not in the expected state is opened through the store, and that
// result counts.
func TestAt(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	all := ctdtest.Blobs{}
	whole, cut, gone, closed := all.Add("", []byte("whole")), all.Add("", []byte("cut")), all.Add("", []byte("gone")), all.Add("", []byte("closed"))
	n.Write(ctx, t, all)
	for _, err := range []error{os.Truncate(n.File(cut.Digest), 1), os.Remove(n.File(gone.Digest)), os.Chmod(n.File(closed.Digest), 0)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	look := func(dir string, d digest.Digest, size int64) (opens int, _ error) {
		under := &opened{Store: n.Content}
		err := blobs.Check(ctx, blobs.WithLocalFiles(func() string { return dir }, under), d, size)
		return under.n, err
	}
	if opens, err := look(n.ContentDir(), whole.Digest, whole.Size); err != nil || opens > 0 {
		t.Errorf("%v, opened %d times", err, opens)
	}
	damage := new(blobs.Damage)
	if opens, err := look(n.ContentDir(), cut.Digest, cut.Size); !errors.As(err, &damage) || damage.Missing || opens != 1 {
		t.Errorf("cut: %v, opened %d times", err, opens)
	}
	if opens, err := look(n.ContentDir(), gone.Digest, gone.Size); !errors.As(err, &damage) || !damage.Missing || opens != 1 {
		t.Errorf("gone: %v, opened %d times", err, opens)
	}
	if opens, _ := look(n.ContentDir(), closed.Digest, closed.Size); opens != 1 {
		t.Errorf("no permission: opened %d times", opens)
	}
	for _, dir := range []string{"", t.TempDir()} {
		if opens, err := look(dir, whole.Digest, whole.Size); err != nil || opens != 1 {
			t.Errorf("directory %q: %v, opened %d times", dir, err, opens)
		}
	}
	if _, err := look(n.ContentDir(), "../../x", 1); err == nil {
		t.Error("accepted an invalid digest")
	}
}
