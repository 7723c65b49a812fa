package pull

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/imagepin/imagepin/integration/checker"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// inEROFS is the handler with the EROFS snapshotter.
const inEROFS = "vm"

// whiteout is an image of four layers. The last one removes a file of the layer below.
var whiteout = images.Options{Files: []images.Files{
	{"/dir/gone": []byte("1"), "/dir/kept": []byte("2")},
	{"/dir/.wh.gone": nil},
}}

// mkfs is a mkfs.erofs for a node that records its calls and can be blocked.
type mkfs struct {
	t   *testing.T
	dir string
}

// newMkfs wraps the mkfs.erofs of hack/erofs-utils.sh.
func newMkfs(t *testing.T) *mkfs {
	t.Helper()
	found := filepath.Join(node.BinDir(), "erofs", "mkfs.erofs")
	if _, err := os.Stat(found); err != nil {
		t.Fatalf("%v; run hack/erofs-utils.sh", err)
	}
	m := &mkfs{t: t, dir: t.TempDir()}
	// Opening the pipe blocks until it has a writer.
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%[1]s/calls\nif [ -p %[1]s/gate ]; then : <%[1]s/gate; fi\nexec %[2]s \"$@\"\n", m.dir, found)
	if err := os.WriteFile(filepath.Join(m.dir, "mkfs.erofs"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// path returns the environment variable with which containerd finds it.
func (m *mkfs) path() string { return "PATH=" + m.dir + ":" + node.BinDir() + ":" + os.Getenv("PATH") }

// calls returns the number of filesystems made so far: by the EROFS differ from archives of layers, and by the
// snapshotter from directories that another differ unpacked.
func (m *mkfs) calls() (fromArchives, fromDirectories int) {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, "calls"))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.Contains(line, "--tar="):
			fromArchives++
		case !strings.Contains(line, "--help"):
			fromDirectories++
		}
	}
	return fromArchives, fromDirectories
}

// hold blocks calls until release is called.
func (m *mkfs) hold() (release func()) {
	m.t.Helper()
	gate := filepath.Join(m.dir, "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		m.t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		f, err := os.OpenFile(gate, os.O_RDWR, 0)
		if err != nil {
			m.t.Error(err)
			return
		}
		m.t.Cleanup(func() { _ = f.Close() }) // a running call may open the pipe later
	})
	m.t.Cleanup(release)
	return release
}

// onEROFS returns the options of a node on which a differ unpacks for inEROFS. The transfer service selects the differ.
// With imagepin serve, only containerd's diff service can.
func onEROFS(m *mkfs, differ, extra string) node.Options {
	transfer := fmt.Sprintf("[[plugins.%q.unpack_config]]\nplatform = %q\nsnapshotter = \"erofs\"\ndiffer = %q\n", testkit.TransferSection, images.HostPlatform(), differ)
	opts := node.Options{Handlers: []node.Handler{{Name: inEROFS, Snapshotter: "erofs"}}, Env: []string{m.path()}}
	if node.DefaultMode() == node.Serve {
		opts.Extra, opts.ServeExtra = fmt.Sprintf("[plugins.\"io.containerd.service.v1.diff-service\"]\ndefault = [%q, \"walking\"]\n", differ)+extra, transfer
		return opts
	}
	opts.Extra = transfer + extra
	return opts
}

// warm runs a pod of each handler to pull the sandbox images. It returns the state after that.
func warm(r *testkit.Rig, handlers ...string) *node.State {
	r.T.Helper()
	for _, h := range handlers {
		r.MustRemovePod(r.MustPod(h))
	}
	r.Collect()
	return r.MustState()
}

// wantNoProblems fails the test if the checker or imagepin check finds a problem.
func wantNoProblems(r *testkit.Rig, opts checker.Options) {
	r.T.Helper()
	opts.Native = images.HostPlatform()
	if problems, err := checker.Check(r.Ctx, r.Node, opts); err != nil || len(problems) > 0 {
		r.T.Errorf("checker: got problems %q, %v", problems, err)
	}
	for _, args := range [][]string{{"check"}, {"check", "--deep"}} {
		if out, ok := r.Command(args...); !ok || !strings.Contains(out, " 0 differ") {
			r.T.Errorf("imagepin %q: got\n%s", args, out)
		}
	}
}

// TestEROFS runs one image on overlayfs and on EROFS, also after a crash, and removes it. In containerd, the EROFS
// differ unpacks layers concurrently. The walking differ unpacks one by one, because it would otherwise lose whiteouts.
func TestEROFS(t *testing.T) {
	t.Parallel()
	for _, differ := range []string{"erofs", "walking"} {
		t.Run(differ, func(t *testing.T) {
			t.Parallel()
			m := newMkfs(t)
			r := testkit.NewRig(t, onEROFS(m, differ, ""))
			handlers := []string{"", inEROFS}
			before := warm(r, handlers...)
			tag, digest := r.Push("app:v1", whiteout, images.HostPlatform(), testkit.Foreign)
			archives, directories := m.calls()

			concurrent := 1
			if differ == "erofs" && node.DefaultMode() != node.Serve {
				concurrent = 4 // imagepin's max_concurrent_unpacks
			}
			release := m.hold()
			pulled := make(chan error, 1)
			go func() {
				_, err := r.Pull(r.Ctx, tag, inEROFS)
				pulled <- err
			}()
			r.Eventually(fmt.Sprintf("%d layers are unpacked concurrently", concurrent), func() bool {
				a, d := m.calls()
				return a-archives+d-directories == concurrent
			})
			release()
			if err := <-pulled; err != nil {
				t.Fatal(err)
			}
			wantArchives, wantDirectories := 4, 0
			if differ == "walking" {
				wantArchives, wantDirectories = 0, 4
			}
			if a, d := m.calls(); a-archives != wantArchives || d-directories != wantDirectories {
				t.Errorf("differ %s: got %d archives and %d directories, want %d and %d", differ, a-archives, d-directories, wantArchives, wantDirectories)
			}
			r.Reg.Reset()
			id := r.MustPull(tag, "")
			r.WantRequests("the pull for the second snapshotter", "HEAD manifest")

			runs := func() {
				t.Helper()
				for _, h := range handlers {
					p := r.MustPod(h)
					r.WantLine(p, node.ContainerOptions{Image: tag, Args: []string{"ls", "/dir"}}, "kept") // "gone" would be first
					r.MustRemovePod(p)
				}
			}
			runs()
			if found := append(r.DeepCheck(false), r.Unverified()...); len(found) > 0 {
				t.Errorf("a deep check found %v, want nothing", found)
			}
			r.WantNames(id, []string{tag}, []string{digest})
			r.KillAndRestart(nil)
			r.Reg.Reset()
			runs()
			r.WantNoRequests("running ready images after a crash")
			wantNoProblems(r, checker.Options{})

			for _, h := range handlers {
				r.MustRemove(tag, testkit.HandlerName(h))
			}
			testkit.NoLeaks(t, r.Node, before)
		})
	}
}

// TestEROFSLayerCache pulls images for EROFS with all layers or one layer in a layer cache of the snapshotter. Cached
// layers are neither fetched nor in the content store, and no check reports that. overlayfs fetches them.
func TestEROFSLayerCache(t *testing.T) {
	t.Parallel()
	m, cache := newMkfs(t), t.TempDir()
	r := testkit.NewRig(t, onEROFS(m, "erofs", fmt.Sprintf("[plugins.\"io.containerd.snapshotter.v1.erofs\"]\nlayer_content_caches = [%q]\n", cache)))
	before := warm(r, "", inEROFS)
	// They share the lower layer. ctr unpacks compressed ones into the content store, where they may be collected.
	v1 := images.Options{Compression: images.Uncompressed}
	v2 := images.Options{Compression: images.Uncompressed, Version: "v2"}
	tag, _ := r.Push("app:v1", v1, images.HostPlatform(), testkit.Foreign)
	next, _ := r.Push("app:v2", v2, images.HostPlatform(), testkit.Foreign)

	r.MustPull(tag, "")
	if _, err := r.Ctr(r.Ctx, "images", "build-erofs-cache", tag, cache); err != nil {
		t.Fatal(err)
	}
	r.MustRemove(tag, "")
	testkit.NoLeaks(t, r.Node, before)
	cached := files(t, cache)
	if len(cached) != 2 {
		t.Fatalf("cache: got files %q, want 2", cached)
	}
	layersBefore := layerBlobs(before)
	fetched := func(why string, want int) {
		t.Helper()
		if got := len(layerBlobs(r.MustState())) - len(layersBefore); got != want {
			t.Errorf("%s: got %d layers in the content store, want %d", why, got, want)
		}
	}
	noProblems := func() {
		t.Helper()
		wantNoProblems(r, checker.Options{DiscardedLayers: true})
	}

	archives, _ := m.calls()
	r.Reg.Reset()
	r.MustPull(tag, inEROFS)
	r.WantRequests("a pull of a cached image", "HEAD manifest", "GET manifest", "GET manifest", "GET blob") // the configuration
	fetched("a pull of a cached image", 0)
	if now, _ := m.calls(); now != archives {
		t.Errorf("%d cached layers were unpacked", now-archives)
	}
	r.WantRun(inEROFS, tag, v1.Line(0))
	noProblems()

	r.Reg.Reset()
	r.MustPull(next, inEROFS)
	r.WantRequests("a pull of a partly cached image", "HEAD manifest", "GET manifest", "GET manifest", "GET blob", "GET blob")
	fetched("a pull of a partly cached image", 1)

	r.KillAndRestart(nil)
	r.Reg.Reset()
	r.WantRun(inEROFS, tag, v1.Line(0))
	r.WantRun(inEROFS, next, v2.Line(0))
	r.WantNoRequests("running ready images after a crash")

	r.MustPull(tag, "")
	r.WantRequests("a pull of the same image for overlayfs", "HEAD manifest", "GET blob", "GET blob")
	r.WantRun("", tag, v1.Line(0))
	noProblems()

	for _, h := range []string{"runc", inEROFS} {
		r.MustRemove(tag, h)
	}
	r.MustRemove(next, inEROFS)
	testkit.NoLeaks(t, r.Node, before)
	if left := files(t, cache); !slices.Equal(left, cached) {
		t.Errorf("cache after the removal: got files %q, want %q", left, cached)
	}
}

// files returns the files below a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			found = append(found, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
