package verifier

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	"github.com/containerd/containerd/v2/pkg/imageverifier/bindir"
)

// settled is how long after its last change a file is read again at each look. Two changes within the granularity of a
// file system's clock cannot be told apart by their times.
const settled = 2 * time.Second

// BinDir is containerd's image verifier plugin "bindir", and the version of the binaries that it runs. It is safe for
// concurrent use.
type BinDir struct {
	imageverifier.ImageVerifier
	dir string
	max int // negative means no limit
	now func() time.Time

	mu    sync.Mutex
	files map[string]content // by name
}

// content is what is known of the content of a file.
type content struct {
	state  fileState
	digest [sha256.Size]byte
}

// NewBinDir returns a BinDir for a plugin with its configuration.
func NewBinDir(v imageverifier.ImageVerifier, c bindir.Config) *BinDir {
	return &BinDir{ImageVerifier: v, dir: c.BinDir, max: c.MaxVerifiers, now: time.Now}
}

// Version returns a text that is the same only if the plugin runs the same binaries in the same order: their names, modes,
// modification times and contents. A file is read again when its inode or a time of it has changed. Version fails if a
// binary cannot be read.
func (b *BinDir) Version(ctx context.Context) (string, error) {
	entries, err := os.ReadDir(b.dir) // sorted, as the plugin reads it
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if b.max >= 0 && len(entries) > b.max {
		entries = entries[:b.max]
	}
	b.mu.Lock()
	known := b.files // replaced, never changed
	b.mu.Unlock()
	version, seen := sha256.New(), make(map[string]content, len(entries))
	fmt.Fprintf(version, "%q\n", b.dir)
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return "", context.Cause(ctx)
		}
		c, err := b.describe(version, e.Name(), known)
		if err != nil {
			return "", err
		}
		seen[e.Name()] = c
	}
	b.mu.Lock()
	b.files = seen
	b.mu.Unlock()
	return fmt.Sprintf("%x", version.Sum(nil)), nil
}

// describe adds a binary to a version. known is what is known of the binaries.
func (b *BinDir) describe(version hash.Hash, name string, known map[string]content) (content, error) {
	path := filepath.Join(b.dir, name)
	info, err := os.Stat(path) // of what a link leads to
	if err != nil {
		return content{}, err
	}
	if !info.Mode().IsRegular() {
		return content{}, fmt.Errorf("%s is not a regular file", path)
	}
	state, changed := stateOf(info)
	c, ok := known[name]
	if !ok || c.state != state || state == (fileState{}) {
		now := b.now()
		if c.digest, err = digestOf(path); err != nil {
			return content{}, err
		}
		if c.state = state; now.Sub(changed) < settled {
			c.state = fileState{}
		}
	}
	fmt.Fprintf(version, "%q %o %d %x\n", name, info.Mode(), info.ModTime().UnixNano(), c.digest)
	return c, nil
}

func digestOf(path string) (d [sha256.Size]byte, _ error) {
	f, err := os.Open(path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return d, err
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}
