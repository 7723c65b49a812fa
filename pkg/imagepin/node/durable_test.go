package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestSyncer checks which snapshotters give a mark: those whose directory is known and can be opened. A directory that is only a guess
// may be that of another file system.
func TestSyncer(t *testing.T) {
	handlers := ctdtest.Runtimes(t, "overlayfs",
		runtimeplatform.Handler{Name: "guess", Snapshotter: "guess"}, runtimeplatform.Handler{Name: "proxy", Snapshotter: "proxy"})
	dir := t.TempDir()
	content := filepath.Join(dir, "content")
	a := &active{runtimes: handlers, Setup: Setup{Settings: config.Settings{Sync: true}, ContentDir: content, Snapshotters: map[string]Snapshotter{
		"overlayfs": {Root: dir}, "guess": {Root: dir, Exports: map[string]string{upstream.ProxyAddress: "/run/guess.sock"}},
		"proxy": {Exports: map[string]string{upstream.ProxyAddress: "/run/proxy.sock", plugins.SnapshotterRootDir: dir}},
	}}}
	n := &Node{barrier: durable.New(), mode: ModeServe}
	s, err := n.syncerOf(a)
	if err != nil {
		t.Fatal(err)
	}
	marks := func(when string) {
		t.Helper()
		for snapshotter, want := range map[string]string{"overlayfs": durable.BootID(), "proxy": durable.BootID(), "guess": "", "other": ""} {
			if got, err := s.image(t.Context(), store.Snapshot{Snapshotter: snapshotter}); err != nil || got != want {
				t.Errorf("%s, %s: mark %q, %v, want %q", when, snapshotter, got, err, want)
			}
		}
	}
	marks("without a blob") // containerd 2.2 has no directory of the content store then
	if err := os.MkdirAll(filepath.Join(content, "blobs", "sha256"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(content, "blobs", "stray"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	marks("with blobs and a stray file")

	a.Settings.Sync = false
	if s, err = n.syncerOf(a); err != nil || s != nil || s.images(t.Context(), nil) != nil || s.names(t.Context()) != nil {
		t.Errorf("without sync: %v, %v", s, err)
	}
	a.Settings.Sync = true
	for what, broken := range map[string]func(*active){
		"snapshotter":   func(a *active) { a.Snapshotters["overlayfs"] = Snapshotter{Root: filepath.Join(dir, "none")} },
		"content store": func(a *active) { a.ContentDir = filepath.Join(dir, "none", "content") },
	} {
		b := *a
		b.Snapshotters = map[string]Snapshotter{"overlayfs": {Root: dir}}
		broken(&b)
		if _, err := n.syncerOf(&b); !errdefs.IsInvalidArgument(err) {
			t.Errorf("serve without the directory of the %s: %v, want ErrInvalidArgument", what, err)
		}
		if _, err := (&Node{barrier: durable.New(), mode: ModePlugin}).syncerOf(&b); err != nil {
			t.Errorf("the plugin without the directory of the %s: %v", what, err)
		}
	}
}

// TestDurableChain checks that the snapshots of an image are made durable once, and that an image of another tool is found with a view
// that does not stay. What is not on the node, and what has a mark, is not looked at.
func TestDurableChain(t *testing.T) {
	node := ctdtest.New(t, "native")
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	ctx, done := node.Lease(t)
	node.Write(ctx, t, blobs)
	node.Unpack(ctx, t, img, "native")
	done()
	handlers := ctdtest.Runtimes(t, "native")
	var views []string
	n := &Node{barrier: durable.New(), mode: ModeServe, containerd: Containerd{
		Leases: node.Leases, Snapshots: func(name string) snapshots.Snapshotter {
			return ctdtest.Snapshots{Snapshotter: node.Snapshotter(name), Before: ctdtest.On("View", func(key string) error {
				views = append(views, key)
				return nil
			})}
		},
	}}
	root := filepath.Join(node.Dir, "snapshots.native")
	a := &active{runtimes: handlers, Setup: Setup{Settings: config.Settings{Sync: true}, Snapshotters: map[string]Snapshotter{"native": {Root: root}}}}
	s, err := n.syncerOf(a)
	if err != nil {
		t.Fatal(err)
	}
	sn := store.Snapshot{Snapshotter: "native", ChainID: img.ChainID}
	e := imagepin.Entry{Key: imagepin.Key{Target: runtimeplatform.Target{Snapshotter: "native"}}, ChainID: img.ChainID, Durable: "boot"}
	ctx = node.Context(t)
	if err := s.images(ctx, []imagepin.Entry{e}); err != nil || len(views) != 0 {
		t.Errorf("with a mark: %v, views %v", err, views)
	}
	e.Durable = ""
	if err := s.images(ctx, []imagepin.Entry{e, e}); err != nil || len(views) != 1 {
		t.Errorf("without a mark: %v, views %v", err, views)
	}
	if mark, err := s.image(ctx, sn); err != nil || mark != durable.BootID() || len(views) != 1 {
		t.Errorf("again: %q, %v, views %v", mark, err, views)
	}
	if s, err = n.syncerOf(a); err != nil { // as a reload of the configuration
		t.Fatal(err)
	}
	if _, err := s.image(ctx, sn); err != nil || len(views) != 1 {
		t.Errorf("after a reload: %v, views %v", err, views)
	}
	sn.ChainID = digest.FromString("none")
	if mark, err := s.image(ctx, sn); err != nil || mark != durable.BootID() {
		t.Errorf("not on the node: %q, %v", mark, err)
	}
	if _, err := node.Snapshotter("native").Stat(ctx, views[0]); !errdefs.IsNotFound(err) {
		t.Errorf("the view stays: %v", err)
	}
	node.WantNoLease(t)
}
