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

// inEROFS is the handler of these tests whose images are in EROFS.
const inEROFS = "vm"

// hiding is an image of four layers, of which the last one removes a file of the one below.
var hiding = images.Options{Files: []images.Files{
	{"/dir/gone": []byte("1"), "/dir/kept": []byte("2")},
	{"/dir/.wh.gone": nil},
}}

// mkfs is a mkfs.erofs for a node, which notes what it is called with and can be made to wait.
type mkfs struct {
	t   *testing.T
	dir string
}

// newMkfs makes one of what hack/erofs-utils.sh has found.
func newMkfs(t *testing.T) *mkfs {
	t.Helper()
	found := filepath.Join(node.BinDir(), "erofs", "mkfs.erofs")
	if _, err := os.Stat(found); err != nil {
		t.Fatalf("%v; run hack/erofs-utils.sh", err)
	}
	m := &mkfs{t: t, dir: t.TempDir()}
	// A pipe that nobody writes to is opened when somebody does.
	script := fmt.Sprintf("#!/bin/sh\necho \"$*\" >>%[1]s/calls\nif [ -p %[1]s/gate ]; then : <%[1]s/gate; fi\nexec %[2]s \"$@\"\n", m.dir, found)
	if err := os.WriteFile(filepath.Join(m.dir, "mkfs.erofs"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return m
}

// path is the variable by which containerd finds it.
func (m *mkfs) path() string { return "PATH=" + m.dir + ":" + node.BinDir() + ":" + os.Getenv("PATH") }

// calls are those so far that made a filesystem: of a layer's archive as the EROFS differ does, or of a directory, as the
// snapshotter does of what another differ has unpacked.
func (m *mkfs) calls() (ofArchives, ofDirectories int) {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.dir, "calls"))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.Contains(line, "--tar="):
			ofArchives++
		case !strings.Contains(line, "--help"):
			ofDirectories++
		}
	}
	return ofArchives, ofDirectories
}

// hold makes calls wait until they are released.
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
		m.t.Cleanup(func() { _ = f.Close() }) // a call that has seen the pipe may open it later
	})
	m.t.Cleanup(release)
	return release
}

// onEROFS are options of a node whose handler inEROFS is unpacked by a differ. In containerd its transfer service says which;
// beside it, only its diff service can.
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

// warm runs a pod of each handler, so that their sandbox images are there, and gives the state then.
func warm(r *testkit.Rig, handlers ...string) *node.State {
	r.T.Helper()
	for _, h := range handlers {
		r.MustRemovePod(r.MustPod(h))
	}
	r.Collect()
	return r.MustState()
}

// wantSound fails the test unless the node and its own check find nothing wrong.
func wantSound(r *testkit.Rig, opts checker.Options) {
	r.T.Helper()
	opts.Native = images.HostPlatform()
	if problems, err := checker.Check(r.Ctx, r.Node, opts); err != nil || len(problems) > 0 {
		r.T.Errorf("problems: %q, %v", problems, err)
	}
	for _, args := range [][]string{{"check"}, {"check", "--deep"}} {
		if out, ok := r.Command(args...); !ok || !strings.Contains(out, " 0 differ") {
			r.T.Errorf("imagepin %q says:\n%s", args, out)
		}
	}
}

// TestEROFS runs one tag on overlayfs and on EROFS, of which containerd's transfer service says who unpacks there, also after a
// crash, and removes it. Its differ unpacks the layers at once; the walking one would lose what a layer hides, and unpacks them one
// after the other.
func TestEROFS(t *testing.T) {
	t.Parallel()
	for _, differ := range []string{"erofs", "walking"} {
		t.Run(differ, func(t *testing.T) {
			t.Parallel()
			m := newMkfs(t)
			r := testkit.NewRig(t, onEROFS(m, differ, ""))
			handlers := []string{"", inEROFS}
			before := warm(r, handlers...)
			tag, digest := r.Push("app:v1", hiding, images.HostPlatform(), testkit.Foreign)
			archives, directories := m.calls()

			atOnce := 1
			if differ == "erofs" && node.DefaultMode() != node.Serve {
				atOnce = 4 // as many as imagepin's max_concurrent_unpacks
			}
			release := m.hold()
			pulled := make(chan error, 1)
			go func() {
				_, err := r.Pull(r.Ctx, tag, inEROFS)
				pulled <- err
			}()
			r.Eventually(fmt.Sprintf("%d layers are unpacked at once", atOnce), func() bool {
				a, d := m.calls()
				return a-archives+d-directories == atOnce
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
				t.Errorf("differ %s made EROFS of %d archives and %d directories", differ, a-archives, d-directories)
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
			r.WantNames(id, []string{tag}, []string{digest})
			r.KillAndRestart(nil)
			r.Reg.Reset()
			runs()
			r.WantNoRequests("running what is ready after a crash")
			wantSound(r, checker.Options{})

			for _, h := range handlers {
				r.MustRemove(tag, testkit.HandlerName(h))
			}
			testkit.NoLeaks(t, r.Node, before)
		})
	}
}

// TestEROFSLayerCache pulls into EROFS what a layer cache of its snapshotter has, all of it or the lower layer only. Such layers are
// never asked for and never in the content store, and nothing takes that for damage; overlayfs gets them of the registry.
func TestEROFSLayerCache(t *testing.T) {
	t.Parallel()
	m, cache := newMkfs(t), t.TempDir()
	r := testkit.NewRig(t, onEROFS(m, "erofs", fmt.Sprintf("[plugins.\"io.containerd.snapshotter.v1.erofs\"]\nlayer_content_caches = [%q]\n", cache)))
	before := warm(r, "", inEROFS)
	// Their lower layer is the same. ctr unpacks compressed ones into the content store, where containerd may collect them.
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
		t.Fatalf("the cache has %q", cached)
	}
	layersBefore := layerBlobs(before)
	fetched := func(why string, want int) {
		t.Helper()
		if got := len(layerBlobs(r.MustState())) - len(layersBefore); got != want {
			t.Errorf("%s: %d layers are in the content store, not %d", why, got, want)
		}
	}
	sound := func() {
		t.Helper()
		wantSound(r, checker.Options{DiscardedLayers: true})
	}

	archives, _ := m.calls()
	r.Reg.Reset()
	r.MustPull(tag, inEROFS)
	r.WantRequests("a pull of what the cache has", "HEAD manifest", "GET manifest", "GET manifest", "GET blob") // the configuration
	fetched("a pull of what the cache has", 0)
	if now, _ := m.calls(); now != archives {
		t.Errorf("%d cached layers were unpacked", now-archives)
	}
	r.WantRun(inEROFS, tag, v1.Line(0))
	sound()

	r.Reg.Reset()
	r.MustPull(next, inEROFS)
	r.WantRequests("a pull of what the cache has half of", "HEAD manifest", "GET manifest", "GET manifest", "GET blob", "GET blob")
	fetched("a pull of what the cache has half of", 1)

	r.KillAndRestart(nil)
	r.Reg.Reset()
	r.WantRun(inEROFS, tag, v1.Line(0))
	r.WantRun(inEROFS, next, v2.Line(0))
	r.WantNoRequests("running what is ready after a crash")

	r.MustPull(tag, "")
	r.WantRequests("a pull of the same for overlayfs", "HEAD manifest", "GET blob", "GET blob")
	r.WantRun("", tag, v1.Line(0))
	sound()

	for _, h := range []string{"runc", inEROFS} {
		r.MustRemove(tag, h)
	}
	r.MustRemove(next, inEROFS)
	testkit.NoLeaks(t, r.Node, before)
	if left := files(t, cache); !slices.Equal(left, cached) {
		t.Errorf("of the cache %q are left", left)
	}
}

// files are those below a directory.
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
