package node

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// TestSyncer checks which snapshotters give a mark: those whose directory is known and can be opened. A directory that is only a guess
// may be that of another file system.
func TestSyncer(t *testing.T) {
	handlers, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "overlayfs"}, {Name: "guess", Snapshotter: "guess"}, {Name: "proxy", Snapshotter: "proxy"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	content := filepath.Join(dir, "content")
	a := &active{runtimes: handlers, Setup: Setup{Settings: config.Settings{Sync: true}, ContentDir: content, Snapshotters: map[string]Snapshotter{
		"overlayfs": {Root: dir}, "guess": {Root: dir, Exports: map[string]string{proxyAddress: "/run/guess.sock"}},
		"proxy": {Exports: map[string]string{proxyAddress: "/run/proxy.sock", plugins.SnapshotterRootDir: dir}},
	}}}
	n := &Node{barrier: durable.New(), mode: ModeServe}
	s, err := n.syncerOf(a)
	if err != nil {
		t.Fatal(err)
	}
	marks := func(when string) {
		t.Helper()
		for snapshotter, want := range map[string]string{"overlayfs": durable.BootID(), "proxy": durable.BootID(), "guess": "", "other": ""} {
			if got, err := s.image(t.Context(), snapshotter); err != nil || got != want {
				t.Errorf("%s, %s: mark %q, %v, want %q", when, snapshotter, got, err, want)
			}
		}
		if err := s.all(t.Context()); err != nil {
			t.Errorf("%s: %v", when, err)
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
	if s, err = n.syncerOf(a); err != nil || s != nil || s.all(t.Context()) != nil || s.names(t.Context()) != nil {
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
