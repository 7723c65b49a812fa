//go:build linux

package replace

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

func eachSnapshotter(t *testing.T, test func(t *testing.T, e *env)) {
	for _, name := range []string{"overlayfs", "native"} {
		t.Run(name, func(t *testing.T) { test(t, newEnv(t, name)) })
	}
}

// children creates what stands on an image after a boot: the snapshots of an exited container, with a file of its own, of
// an image volume, and of a layer of another image. It returns the name of the layer.
func (e *env) children() (layer string) {
	e.t.Helper()
	sn, top := e.Snapshotter(e.snapshotter), e.entry.ChainID.String()
	mounts, err := sn.Prepare(e.ctx, "container", top)
	if err != nil {
		e.t.Fatal(err)
	}
	err = mount.WithTempMount(e.ctx, mounts, func(root string) error {
		return errors.Join(os.WriteFile(filepath.Join(root, "own"), []byte("own"), 0o600),
			os.WriteFile(filepath.Join(root, "bin/app"), []byte("changed"), 0o600), os.Remove(filepath.Join(root, "etc/name")))
	})
	if err != nil {
		e.t.Fatal(err)
	}
	if _, err := sn.View(e.ctx, "volume", top); err != nil {
		e.t.Fatal(err)
	}
	blobs := ctdtest.Blobs{}
	desc := blobs.Add(ocispec.MediaTypeImageLayer, tarOf(e.t, layerFiles()[0][:1]))
	e.Write(e.ctx, e.t, blobs)
	layer = digest.FromString("another image").String()
	e.extract(desc, layer, top)
	return layer
}

// TestReplaceBelowAnExitedContainer damages two layers of an image, and checks that all files are as before after the repair,
// also for what stands on the image.
func TestReplaceBelowAnExitedContainer(t *testing.T) {
	eachSnapshotter(t, func(t *testing.T, e *env) {
		above := e.children()
		all := []string{e.layers[0].chainID.String(), e.layers[1].chainID.String(), e.layers[2].chainID.String(), "container", "volume", above}
		before := make(map[string][]string)
		for _, name := range all {
			before[name] = e.files(name)
		}
		e.Collect(t)
		dirs := e.directories()
		copied := e.snapshotter == "native"
		for _, l := range e.layers[1:] {
			e.damage(l.chainID.String())
		}
		if copied {
			e.damage(above)
		}
		for _, name := range all[1:] {
			if slices.Equal(e.files(name), before[name]) && !(copied && name == "container") {
				t.Fatalf("%s is not damaged", name)
			}
		}
		damagedTop := e.files(all[2])
		e.config.Sync = func(context.Context, string) error {
			e.synced = append(e.synced, e.snapshotter)
			if !slices.Equal(e.files(all[2]), damagedTop) {
				t.Error("a directory was exchanged before the new ones were durable")
			}
			return nil
		}

		if err := New(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(e.synced, []string{e.snapshotter}) {
			t.Errorf("synced %q, want the snapshotter once", e.synced)
		}
		for _, name := range all {
			if copied && name == above {
				continue // a copy of the damaged one
			}
			if after := e.files(name); !slices.Equal(after, before[name]) {
				t.Errorf("files of %s:\n%s\nbefore:\n%s", name, strings.Join(after, "\n"), strings.Join(before[name], "\n"))
			}
		}
		e.Collect(t)
		if after := e.directories(); !slices.Equal(after, dirs) {
			t.Errorf("directories are %q, before %q", after, dirs)
		}
		e.checkNothingLeft()
	})
}

// checkNothingLeft checks that no snapshot and no lease of a call is left.
func (e *env) checkNothingLeft() {
	e.t.Helper()
	err := e.Snapshotter(e.snapshotter).Walk(e.ctx, func(_ context.Context, i snapshots.Info) error {
		if strings.HasPrefix(i.Name, scratchPrefix) {
			return fmt.Errorf("snapshot %s is left", i.Name)
		}
		return nil
	})
	if err != nil {
		e.t.Error(err)
	}
	all, err := e.Leases.List(e.ctx)
	if err != nil || len(all) != 1 {
		e.t.Errorf("leases are %v, %v, want that of the test", all, err)
	}
}

// TestReplaceAll checks that all layers are replaced if it is not known which are damaged.
func TestReplaceAll(t *testing.T) {
	eachSnapshotter(t, func(t *testing.T, e *env) {
		before := e.files(e.entry.ChainID.String())
		for _, l := range e.layers {
			e.damage(l.chainID.String())
		}
		if err := New(e.config).Replace(e.ctx, e.entry, ""); err != nil {
			t.Fatal(err)
		}
		if after := e.files(e.entry.ChainID.String()); !slices.Equal(after, before) {
			t.Errorf("files:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
		}
		e.checkNothingLeft()
	})
}

// TestReplaceFails checks that a repair that fails changes nothing and leaves nothing.
func TestReplaceFails(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name   string
		change func(e *env)
		is     func(error) bool
		text   string
	}{
		{"missing layer", func(e *env) {
			if err := e.Content.Delete(e.ctx, e.layers[2].desc.Digest); err != nil {
				e.t.Fatal(err)
			}
		}, errdefs.IsNotFound, ""},
		{"sync fails", func(e *env) {
			e.config.Sync = func(context.Context, string) error { return broken }
		}, func(err error) bool { return errors.Is(err, broken) }, ""},
		{"no applier", func(e *env) {
			e.config.Applier = func(string) (diff.Applier, []diff.ApplyOpt, bool) { return nil, nil, false }
		}, errdefs.IsNotImplemented, "SnapshotNotReplaceable: registry.example.com/app:1 for linux/amd64 on "},
		{"unpacked to other content", func(e *env) {
			applier, _, _ := e.config.Applier("")
			e.config.Applier = func(string) (diff.Applier, []diff.ApplyOpt, bool) { return wrongApplier{applier}, nil, true }
		}, errdefs.IsFailedPrecondition, "ContentCorrupt: "},
		{"other snapshotter", func(e *env) { e.entry.Target.Snapshotter = "erofs" }, errdefs.IsNotImplemented, "snapshotter erofs has no directories"},
		{"unknown layer", func(e *env) { e.layers[1].chainID = "sha256:unknown" }, errdefs.IsInvalidArgument, ""},
		{"locks", func(e *env) { e.config.Locks = brokenLocks{broken} }, func(err error) bool { return errors.Is(err, broken) }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			eachSnapshotter(t, func(t *testing.T, e *env) {
				e.damage(e.layers[1].chainID.String())
				before := e.files(e.entry.ChainID.String())
				test.change(e)
				err := New(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID)
				if err == nil || !test.is(err) || !strings.Contains(err.Error(), test.text) {
					t.Errorf("got %v, want %q", err, test.text)
				}
				if after := e.files(e.entry.ChainID.String()); !slices.Equal(after, before) {
					t.Error("the snapshot has changed")
				}
				e.checkNothingLeft()
			})
		})
	}
}

type brokenLocks struct{ err error }

func (l brokenLocks) ForRemoval(context.Context, ...string) (func(), error) { return nil, l.err }

// wrongApplier returns another diff ID than that of the layer.
type wrongApplier struct{ diff.Applier }

func (a wrongApplier) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	got, err := a.Applier.Apply(ctx, desc, mounts, opts...)
	got.Digest = digest.FromString("other")
	return got, err
}

// sharedDirectory returns a directory for a mount. An unmount there reaches the mount namespaces that other processes create
// meanwhile.
func sharedDirectory(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
	})
	point := filepath.Join(dir, "point")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	return point
}

// impatient returns a replacer that does not wait for the end of a mount.
func impatient(c Config) *Replacer {
	r := New(c)
	r.settle = 0
	return r
}

// TestReplaceInUse checks that a snapshot that a container runs on, or that something mounts, is not replaced, and that the
// error says what uses it.
func TestReplaceInUse(t *testing.T) {
	e := newEnv(t, "overlayfs")
	e.children()
	e.damage(e.layers[1].chainID.String())
	fails := func(want string) {
		t.Helper()
		before := e.files(e.entry.ChainID.String())
		err := impatient(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID)
		var typed *imagepin.Error
		if !errors.As(err, &typed) || typed.Reason != imagepin.SnapshotInUse || !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
		if len(err.Error()) > imagepin.MaxErrorText {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
		if after := e.files(e.entry.ChainID.String()); !slices.Equal(after, before) {
			t.Error("the snapshot has changed")
		}
		e.checkNothingLeft()
	}
	var users []User
	e.config.Users = func(context.Context) ([]User, error) { return users, nil }
	users = []User{{Snapshot: "container", Name: "container app of pod shop/cart-0"}, {Snapshot: "elsewhere", Name: "other"}}
	fails("it is in use by container app of pod shop/cart-0")
	users = nil
	for i := range 100 {
		users = append(users, User{Snapshot: "container", Name: fmt.Sprintf("container %02d%s", i, strings.Repeat("x", 1000))})
	}
	fails(" and 95 more")
	users = nil

	// A mount that no container explains, of the active snapshot, and a bind mount of a directory.
	point := sharedDirectory(t)
	for _, m := range [][]mount.Mount{
		e.mounts("container"),
		{{Type: "bind", Source: filepath.Join(e.directory(e.layers[2].chainID.String()), "bin"), Options: []string{"rbind", "ro"}}},
	} {
		if err := mount.All(m, point); err != nil {
			t.Fatal(err)
		}
		fails("mount point " + point)
		if err := mount.UnmountAll(point, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := New(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID); err != nil {
		t.Errorf("after the unmount: %v", err)
	}
}

// TestReplaceWaitsForMounts checks that a mount that ends in a moment does not fail a repair.
func TestReplaceWaitsForMounts(t *testing.T) {
	e := newEnv(t, "overlayfs")
	e.damage(e.layers[2].chainID.String())
	point := sharedDirectory(t)
	if err := mount.All(e.mounts(e.layers[2].chainID.String()), point); err != nil {
		t.Fatal(err)
	}
	r := New(e.config)
	r.settle = time.Minute
	looked := make(chan struct{}, 1)
	r.config.Users = func(context.Context) ([]User, error) {
		select {
		case looked <- struct{}{}:
		default:
		}
		return nil, nil
	}
	unmounted := make(chan error, 1)
	go func() {
		<-looked
		unmounted <- mount.UnmountAll(point, 0)
	}()
	if err := r.Replace(e.ctx, e.entry, e.layers[2].chainID); err != nil {
		t.Error(err)
	}
	if err := <-unmounted; err != nil {
		t.Error(err)
	}
}

// TestReplaceNativeInUse checks that a native snapshot is replaced although a container runs on it, which has a copy, but not while
// something mounts it, or a layer is unpacked on it.
func TestReplaceNativeInUse(t *testing.T) {
	e := newEnv(t, "native")
	e.children()
	top := e.layers[2].chainID.String()
	before := e.files(top)
	e.damage(e.layers[1].chainID.String())
	e.damage(top)
	e.config.Users = func(context.Context) ([]User, error) {
		return []User{{Snapshot: "container", Name: "container app"}}, nil
	}
	replaced := func() error {
		return New(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID)
	}
	point := sharedDirectory(t)
	if err := mount.All(e.mounts("volume"), point); err != nil {
		t.Fatal(err)
	}
	if err := impatient(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "mount point "+point) {
		t.Errorf("while it is mounted: got %v", err)
	}
	if err := mount.UnmountAll(point, 0); err != nil {
		t.Fatal(err)
	}
	sn := e.Snapshotter("native")
	key := fmt.Sprintf(snapshots.UnpackKeyFormat, "other", "layer")
	if _, err := sn.Prepare(e.ctx, key, top); err != nil {
		t.Fatal(err)
	}
	if err := replaced(); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), key) {
		t.Errorf("while a layer is unpacked: got %v", err)
	}
	if err := sn.Remove(e.ctx, key); err != nil {
		t.Fatal(err)
	}
	if err := replaced(); err != nil {
		t.Error(err)
	}
	if after := e.files(top); !slices.Equal(after, before) {
		t.Errorf("files:\n%s\nbefore:\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
}

// TestReplaceLocksTheImages checks that the exchange waits for calls that use an image whose snapshot stands on a damaged one, and
// that what began to use it meanwhile is noticed.
func TestReplaceLocksTheImages(t *testing.T) {
	e := newEnv(t, "overlayfs")
	other := e.entry
	other.Ref, other.ChainID = "registry.example.com/other:1", digest.Digest(e.children())
	unrelated := e.entry
	unrelated.Ref, unrelated.ChainID = "registry.example.com/unrelated:1", e.layers[0].chainID
	e.config.Entries = func() []imagepin.Entry { return []imagepin.Entry{other, unrelated} }
	var users []User
	e.config.Users = func(context.Context) ([]User, error) { return users, nil }
	l := &notedLocks{taken: func() { users = []User{{Snapshot: "container", Name: "container new"}} }}
	e.config.Locks = l
	e.damage(e.layers[1].chainID.String())
	before := e.files(e.entry.ChainID.String())
	err := New(e.config).Replace(e.ctx, e.entry, e.layers[1].chainID)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "container new") {
		t.Errorf("got %v, want the new container", err)
	}
	want := []string{
		e.entry.Ref, "registry.example.com/app@" + e.entry.Root.Digest.String(), other.Ref, "registry.example.com/other@" + other.Root.Digest.String(),
	}
	if !slices.Equal(l.refs, want) || l.held {
		t.Errorf("locked %q, and held %v, want %q", l.refs, l.held, want)
	}
	if after := e.files(e.entry.ChainID.String()); !slices.Equal(after, before) {
		t.Error("the snapshot has changed")
	}
}

type notedLocks struct {
	refs  []string
	held  bool
	taken func()
}

func (l *notedLocks) ForRemoval(_ context.Context, refs ...string) (func(), error) {
	l.refs, l.held = refs, true
	l.taken()
	return func() { l.held = false }, nil
}

// TestReplaceOnReadOnlyFileSystem checks that nothing is unpacked if the directories cannot be exchanged, as in the unit of imagepin
// serve.
func TestReplaceOnReadOnlyFileSystem(t *testing.T) {
	dir := t.TempDir()
	ro := mount.Mount{Type: "bind", Source: dir, Options: []string{"bind", "ro"}}
	if err := ro.Mount(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, 0); err != nil {
			t.Error(err)
		}
	})
	j := &job{damaged: tree{dirs: []string{filepath.Join(t.TempDir(), "1"), filepath.Join(dir, "2")}}}
	err := j.checkWritable()
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "imagepin cannot write to "+dir) || !strings.Contains(err.Error(), "ReadWritePaths=") {
		t.Errorf("got %v", err)
	}
	if j.damaged.dirs = j.damaged.dirs[:1]; j.checkWritable() != nil {
		t.Error("a writable directory is refused")
	}
}
