package blobs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
)

// WithLocalFiles returns a content store that checks files directly, if this process can read them. dir returns the directory of
// containerd's own content store, or "". A stat takes a fraction of the time of opening the file through the store.
// Only a file in the expected state is accepted from the file system; for all others the store decides.
func WithLocalFiles(dir func() string, store content.Store) content.Store {
	return &localFiles{Store: store, dir: dir}
}

var _ Checker = (*localFiles)(nil)

type localFiles struct {
	content.Store
	dir func() string
}

// ownerRead is a permission that containerd sets on all files.
const ownerRead = 0o400

// Check implements [Checker].
func (l *localFiles) Check(ctx context.Context, d digest.Digest, size int64) error {
	if dir := l.dir(); dir != "" && d.Validate() == nil {
		info, err := os.Stat(filepath.Join(dir, upstream.BlobsDir, d.Algorithm().String(), d.Encoded()))
		if err == nil && info.Mode().IsRegular() && info.Mode()&ownerRead != 0 && info.Size() == size {
			return nil
		}
	}
	return Check(ctx, l.Store, d, size)
}

// ReadFile reads the file of a blob that the store has a record of, without the store, if the store's files can be read. ok is
// false if the file does not have size bytes that match the digest.
func ReadFile(store content.Store, d digest.Digest, size int64) (b []byte, ok bool) {
	l, ok := store.(*localFiles)
	if !ok || l.dir() == "" || d.Validate() != nil {
		return nil, false
	}
	f, err := os.Open(filepath.Join(l.dir(), upstream.BlobsDir, d.Algorithm().String(), d.Encoded()))
	if err != nil {
		return nil, false
	}
	defer f.Close()
	b = make([]byte, size)
	if info, err := f.Stat(); err != nil || info.Size() != size || info.Mode()&ownerRead == 0 {
		return nil, false
	}
	if _, err := io.ReadFull(f, b); err != nil || d.Algorithm().FromBytes(b) != d {
		return nil, false
	}
	return b, true
}

// Opener opens the data of writes that are not complete. A content store that can read its files implements it.
type Opener interface {
	// OpenWrite opens what is written under a name in the namespace of ctx. It fails with fs.ErrNotExist if the file is not known.
	OpenWrite(ctx context.Context, ref string) (io.ReadCloser, error)
}

var _ Opener = (*localFiles)(nil)

// OpenWrite implements [Opener]. The name of a write is after the namespace and a number.
func (l *localFiles) OpenWrite(ctx context.Context, ref string) (io.ReadCloser, error) {
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	dir := l.dir()
	if dir == "" {
		return nil, fs.ErrNotExist
	}
	names, err := filepath.Glob(filepath.Join(dir, upstream.IngestDir, "*", upstream.IngestRef))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // it ends
		}
		rest, ok := strings.CutPrefix(string(b), namespace+"/")
		number, written, _ := strings.Cut(rest, "/")
		if _, err := strconv.ParseUint(number, 10, 64); ok && err == nil && written == ref {
			return os.Open(filepath.Join(filepath.Dir(name), upstream.IngestData))
		}
	}
	return nil, fs.ErrNotExist
}

// Cleaner removes what a power cut has left of writes. A content store that can read its files implements it.
type Cleaner interface {
	// RemoveNameless removes the directories of writes whose names cannot be read and that began before a time. containerd ignores
	// them, and never deletes them.
	RemoveNameless(ctx context.Context, before time.Time) error
}

var _ Cleaner = (*localFiles)(nil)

// RemoveNameless implements [Cleaner]. The name of a directory is the digest of the name of its write.
func (l *localFiles) RemoveNameless(ctx context.Context, before time.Time) error {
	dir := l.dir()
	if dir == "" {
		return nil
	}
	all, err := os.ReadDir(filepath.Join(dir, upstream.IngestDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var failed error
	for _, d := range all {
		path := filepath.Join(dir, upstream.IngestDir, d.Name())
		info, err := d.Info()
		if err != nil || !d.IsDir() || !info.ModTime().Before(before) {
			continue // it has ended, or has just begun
		}
		ref, err := os.ReadFile(filepath.Join(path, upstream.IngestRef))
		if err == nil && digest.FromBytes(ref).Encoded() == d.Name() || err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		log.G(ctx).WithField("directory", path).Warn("removing what has arrived of a blob, its name cannot be read")
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	return failed
}
