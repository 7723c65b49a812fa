package testkit

import (
	"os"
	"strings"

	"github.com/distribution/reference"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// WriteLock writes a lock of tags, each at a digest, into the root of the node, and returns its path.
func (r *Rig) WriteLock(name string, locked map[string]string) string {
	r.T.Helper()
	var all []lock.Image
	for id, digest := range locked {
		ref, err := imagepin.ParseReference(id[:strings.LastIndex(id, ":")] + "@" + digest)
		if err != nil {
			r.T.Fatal(err)
		}
		all = append(all, lock.Image{ID: id, Ref: ref.(reference.Canonical)})
	}
	l, err := lock.New(all)
	if err != nil {
		r.T.Fatal(err)
	}
	text, err := l.Marshal()
	if err != nil {
		r.T.Fatal(err)
	}
	path := r.Path(name)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		r.T.Fatal(err)
	}
	return path
}

// MustApply applies a lock or a bundle with the imagepin command.
func (r *Rig) MustApply(path string, args ...string) {
	r.T.Helper()
	if out, code := r.Operator(append([]string{"apply", path}, args...)...); code != 0 {
		r.T.Fatalf("imagepin apply %s: exit code %d:\n%s", path, code, out)
	}
}
