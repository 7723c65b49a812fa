//go:build linux

package replace

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/diff/apply"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// env is a node with an image of three layers that have files of all types.
type env struct {
	*ctdtest.Node
	t           *testing.T
	ctx         context.Context
	snapshotter string
	entry       imagepin.Entry
	layers      []layer
	config      Config
	synced      []string
}

func newEnv(t *testing.T, snapshotter string) *env {
	t.Helper()
	open := func(root string) (snapshots.Snapshotter, error) { return overlay.NewSnapshotter(root) }
	if snapshotter == "native" {
		open = native.NewSnapshotter
	}
	e := &env{Node: ctdtest.NewOf(t, open, snapshotter), t: t, snapshotter: snapshotter}
	e.ctx, _ = e.Lease(t) // holds the image until the end of the test
	applier := apply.NewFileSystemApplier(e.Content)
	e.config = Config{
		Content: e.Content, Leases: e.Leases, Snapshotter: e.Snapshotter,
		Applier: func(string) (diff.Applier, []diff.ApplyOpt, bool) { return applier, nil, true },
		Sync: func(_ context.Context, snapshotter string) error {
			e.synced = append(e.synced, snapshotter)
			return nil
		},
		Locks: locks{}, Entries: func() []imagepin.Entry { return nil },
	}
	e.addImage()
	return e
}

// locks are locks that nobody else holds.
type locks struct{}

func (locks) ForRemoval(context.Context, ...string) (func(), error) { return func() {}, nil }

// addImage adds an image, unpacks it, and sets the entry.
func (e *env) addImage() {
	blobs := ctdtest.Blobs{}
	var (
		descs   []ocispec.Descriptor
		diffIDs []digest.Digest
	)
	for _, files := range layerFiles() {
		data := tarOf(e.t, files)
		descs = append(descs, blobs.Add(ocispec.MediaTypeImageLayer, data))
		diffIDs = append(diffIDs, digest.FromBytes(data))
	}
	config := blobs.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{RootFS: ocispec.RootFS{Type: "layers", DiffIDs: diffIDs}})
	manifest := blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: descs,
	})
	e.Write(e.ctx, e.t, blobs)
	e.entry = imagepin.Entry{
		Key:  imagepin.Key{Ref: "registry.example.com/app:1", Target: runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: e.snapshotter}},
		Root: manifest, Manifest: manifest.Digest, ImageID: config.Digest, ChainID: identity.ChainID(slices.Clone(diffIDs)), RecordTarget: manifest,
	}
	parent := ""
	for i, chainID := range identity.ChainIDs(slices.Clone(diffIDs)) {
		e.layers = append(e.layers, layer{descs[i], diffIDs[i], chainID})
		e.extract(descs[i], chainID.String(), parent)
		parent = chainID.String()
	}
}

// extract unpacks a layer on a parent, as containerd's unpacker does.
func (e *env) extract(desc ocispec.Descriptor, name, parent string) {
	e.t.Helper()
	sn := e.Snapshotter(e.snapshotter)
	key := fmt.Sprintf(snapshots.UnpackKeyFormat, "test", name)
	mounts, err := sn.Prepare(e.ctx, key, parent)
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := apply.NewFileSystemApplier(e.Content).Apply(e.ctx, desc, mounts); err != nil {
		e.t.Fatal(err)
	}
	if err := sn.Commit(e.ctx, name, key); err != nil {
		e.t.Fatal(err)
	}
}

// layerFiles returns the files of the layers: all types, a file that a layer above replaces, and ones that it removes.
func layerFiles() [][]*tar.Header {
	file := func(name, text string, mode int64) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text)), Linkname: text}
	}
	big := strings.Repeat("0123456789abcdef", 8<<10)
	return [][]*tar.Header{
		{
			{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755},
			file("bin/app", big+"1", 0o4755), file("bin/removed", "removed", 0o755), file("etc/name", "one", 0o640),
			{Typeflag: tar.TypeDir, Name: "data/", Mode: 0o1777, Uid: 1000, Gid: 1000},
			file("data/old", "old", 0o600),
		},
		{
			file("bin/app2", big+"2", 0o755), {Typeflag: tar.TypeLink, Name: "bin/hard", Linkname: "bin/app2"},
			{Typeflag: tar.TypeSymlink, Name: "bin/link", Linkname: "app2"}, {Typeflag: tar.TypeSymlink, Name: "bin/dangling", Linkname: "/nowhere"},
			{Typeflag: tar.TypeFifo, Name: "run/fifo", Mode: 0o644},
			{Typeflag: tar.TypeChar, Name: "dev/null", Mode: 0o666, Devmajor: 1, Devminor: 3},
			{
				Typeflag: tar.TypeReg, Name: "bin/caps", Mode: 0o755, Size: 4, Linkname: "caps",
				PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"},
			},
			file("etc/name", "two", 0o640), file("empty", "", 0o644), file("zeros", strings.Repeat("\x00", 4096), 0o644),
		},
		{
			file("bin/.wh.removed", "", 0o644), file("data/.wh..wh..opq", "", 0o644), file("data/new", "new", 0o600),
			file("etc/name", "three", 0o640),
		},
	}
}

// tarOf returns a layer. The content of a file is its Linkname.
func tarOf(t *testing.T, files []*tar.Header) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range files {
		text := ""
		if h.Typeflag == tar.TypeReg {
			text, h.Linkname = h.Linkname, ""
		}
		h.Format, h.ModTime = tar.FormatPAX, time.Unix(1700000000, 0)
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// mounts returns the mounts of a snapshot: those of a view of a committed one.
func (e *env) mounts(name string) []mount.Mount {
	e.t.Helper()
	sn := e.Snapshotter(e.snapshotter)
	mounts, err := sn.Mounts(e.ctx, name)
	if err == nil {
		return mounts
	}
	key := "look " + name // a committed snapshot has no mounts
	if mounts, err = sn.View(e.ctx, key, name); err == nil {
		err = sn.Remove(e.ctx, key)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	return mounts
}

// files describes all files of a snapshot as a container sees them.
func (e *env) files(name string) (all []string) {
	e.t.Helper()
	err := mount.WithReadonlyTempMount(e.ctx, e.mounts(name), func(root string) error {
		all = describe(e.t, root)
		return nil
	})
	if err != nil {
		e.t.Fatal(err)
	}
	return all
}

// describe describes all files of a directory: type, mode, owner, device, size, time, links, attributes and content.
func describe(t *testing.T, root string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		line := fmt.Sprintf("%s %o %d:%d %x", strings.TrimPrefix(path, root), st.Mode, st.Uid, st.Gid, st.Rdev)
		if !d.IsDir() { // containerd gives directories other times when files are added
			line += fmt.Sprintf(" %d %d", st.Mtim.Sec, st.Size)
		}
		switch d.Type() {
		case 0:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			caps := make([]byte, 64)
			n, _ := unix.Lgetxattr(path, "security.capability", caps)
			line += fmt.Sprintf(" %x links %d caps %x", sha256.Sum256(b), st.Nlink, caps[:max(n, 0)])
		case fs.ModeSymlink:
			to, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + to
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// directory returns the directory of a committed snapshot.
func (e *env) directory(name string) string {
	e.t.Helper()
	m := e.mounts(name)[0]
	for _, o := range m.Options {
		if lower, ok := strings.CutPrefix(o, "lowerdir="); ok {
			return strings.Split(lower, ":")[0]
		}
	}
	return m.Source
}

// damage makes all files of a snapshot empty, as a power cut does.
func (e *env) damage(name string) {
	e.t.Helper()
	n := 0
	err := filepath.WalkDir(e.directory(name), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		n++
		return os.Truncate(path, 0)
	})
	if err != nil || n == 0 {
		e.t.Fatalf("damaged %d files of %s: %v", n, name, err)
	}
}

// directories returns the names in the directory of the snapshotter.
func (e *env) directories() (names []string) {
	e.t.Helper()
	all, err := os.ReadDir(filepath.Join(e.Dir, "snapshots."+e.snapshotter, "snapshots"))
	if err != nil {
		e.t.Fatal(err)
	}
	for _, d := range all {
		names = append(names, d.Name())
	}
	return names
}
