package remove

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/v2/contrib/snapshotservice"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// proxySnapshotter serves containerd's native snapshotter on a socket. To containerd, it is a process of its own. It
// can fail, hang, stop and start again.
type proxySnapshotter struct {
	snapshots.Snapshotter
	socket string
	server *grpc.Server
	served chan error

	mu       sync.Mutex
	fault    func(context.Context) error
	commit   func(context.Context) error // fault of Commit, during which containerd has its metadata database locked
	hung     chan struct{}               // receives one element for each call that hangs
	released chan struct{}               // closed to let the hanging calls continue
}

func newProxySnapshotter(t *testing.T, r *testkit.Rig) *proxySnapshotter {
	t.Helper()
	sn, err := native.NewSnapshotter(r.Path("remote"))
	if err != nil {
		t.Fatal(err)
	}
	m := &proxySnapshotter{Snapshotter: sn, socket: r.Path("remote.sock"), hung: make(chan struct{}, 1000), released: make(chan struct{})}
	m.start(t)
	t.Cleanup(func() {
		m.setFault(nil)
		m.kill(t)
	})
	return m
}

func (m *proxySnapshotter) start(t *testing.T) {
	t.Helper()
	if err := os.Remove(m.socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", m.socket)
	if err != nil {
		t.Fatal(err)
	}
	m.server, m.served = grpc.NewServer(), make(chan error, 1)
	snapshotsapi.RegisterSnapshotsServer(m.server, snapshotservice.FromSnapshotter(m))
	go func() { m.served <- m.server.Serve(l) }()
}

func (m *proxySnapshotter) kill(t *testing.T) {
	t.Helper()
	if m.server == nil {
		return
	}
	m.server.Stop()
	if err := <-m.served; err != nil {
		t.Error(err)
	}
	m.server = nil
}

func (m *proxySnapshotter) setFault(fault func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.released)
	m.fault, m.released = fault, make(chan struct{})
}

// hang blocks until the caller cancels or the fault is replaced. containerd's garbage collection never cancels.
func (m *proxySnapshotter) hang(ctx context.Context) error {
	m.mu.Lock()
	released := m.released
	m.mu.Unlock()
	m.hung <- struct{}{}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-released:
		return nil
	}
}

func (m *proxySnapshotter) injectFault(ctx context.Context) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx)
}

func (m *proxySnapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := m.injectFault(ctx); err != nil {
		return nil, err
	}
	return m.Snapshotter.Prepare(ctx, key, parent, opts...)
}

func (m *proxySnapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	if err := m.injectFault(ctx); err != nil {
		return snapshots.Info{}, err
	}
	return m.Snapshotter.Stat(ctx, key)
}

func (m *proxySnapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	m.mu.Lock()
	fault := m.commit
	m.mu.Unlock()
	if fault != nil {
		if err := fault(ctx); err != nil {
			return err
		}
	}
	return m.Snapshotter.Commit(ctx, name, key, opts...)
}

func (m *proxySnapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	if err := m.injectFault(ctx); err != nil {
		return err
	}
	return m.Snapshotter.Walk(ctx, fn, filters...)
}

// newProxyRig returns a node that has a handler "remote" with a proxySnapshotter.
func newProxyRig(t *testing.T) (*testkit.Rig, *proxySnapshotter) {
	t.Helper()
	r := testkit.NewRig(t, node.Options{})
	m := newProxySnapshotter(t, r)
	if err := r.Restart(r.Ctx, func(o *node.Options) {
		o.Handlers = []node.Handler{{Name: "remote", Snapshotter: "remote"}}
		o.Extra = "[proxy_plugins.remote]\ntype = 'snapshot'\naddress = '{root}/remote.sock'\n"
	}); err != nil {
		t.Fatal(err)
	}
	return r, m
}

// wantPullError fails the test unless err contains CannotPullImage and these words.
func wantPullError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Error("the pull succeeded")
		return
	}
	for _, word := range append(words, "CannotPullImage") {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not contain %q: %v", word, err)
		}
	}
}

// TestSnapshotterFaults lets a snapshotter fail, hang and die. Pulls for it fail with an error that names the cause,
// images of other snapshotters still run, and its own images are available again when it responds.
func TestSnapshotterFaults(t *testing.T) {
	t.Parallel()
	r, m := newProxyRig(t)
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	id := r.MustPull(tag, "remote")
	r.MustPull(tag, "")
	r.WantRun("remote", tag, opts.Line(0))
	next := func(version string) string {
		ref, _ := r.Push("other:"+version, images.Options{Version: version}, images.HostPlatform())
		return ref
	}

	m.setFault(func(context.Context) error { return errors.New("the disk array is on fire") })
	ref := next("failing")
	_, err := r.Pull(r.Ctx, ref, "remote")
	wantPullError(t, err, "on fire", "remote")
	r.MustPull(ref, "")
	r.WantRun("", ref, images.Options{Version: "failing"}.Line(0))
	m.setFault(nil)
	r.MustPull(ref, "remote")
	r.WantRun("remote", ref, images.Options{Version: "failing"}.Line(0))

	m.setFault(m.hang)
	ref = next("hanging")
	ctx, cancel := context.WithCancel(r.Ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := r.Pull(ctx, ref, "remote")
		ended <- err
	}()
	<-m.hung
	r.MustPull(next("meanwhile"), "")
	r.WantRun("", tag, opts.Line(0))
	if r.MustStatus(tag, "remote").GetId() != id {
		t.Error("the image is not available while its snapshotter hangs")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a cancelled pull succeeded")
	}
	m.setFault(nil)
	r.MustPull(ref, "remote")
	r.WantRun("remote", ref, images.Options{Version: "hanging"}.Line(0))

	r.Reg.Down()
	for how, start := range map[string]func(){
		"dead":    func() { m.kill(t) },
		"hanging": func() { m.setFault(m.hang) },
	} {
		start()
		since := time.Now()
		r.KillAndRestart(nil)
		t.Logf("with the snapshotter %s, containerd started in %s", how, time.Since(since))
		r.WantRun("", tag, opts.Line(0))
		if img := r.MustStatus(tag, "remote"); img != nil {
			t.Errorf("with the snapshotter %s, ImageStatus returned its image: %v", how, img)
		}
		if m.setFault(nil); how == "dead" {
			m.start(t)
		}
		testkit.EventuallyIn(t, 40*time.Second, "the image is available again after the snapshotter was "+how, func(ctx context.Context) (bool, error) {
			img, err := r.ImageStatus(ctx, tag, "remote")
			return img.GetId() == id, err
		})
		testkit.EventuallyIn(t, 40*time.Second, "the image runs after the snapshotter was "+how, func(ctx context.Context) (bool, error) {
			got, err := r.Run(ctx, "remote", node.ContainerOptions{Image: tag})
			return err == nil && got == opts.Line(0), nil
		})
	}
}

// TestHangInCommit lets a snapshotter hang in Commit, while containerd has its metadata database locked for writes.
// Reads and pulls that write nothing still succeed, and waiting calls continue when the snapshotter does.
func TestHangInCommit(t *testing.T) {
	t.Parallel()
	r, m := newProxyRig(t)
	opts := images.Options{}
	tag, byDigest := r.Push("app:v1", opts, images.HostPlatform())
	id := r.MustPull(tag, "")
	m.mu.Lock()
	m.commit = m.hang
	m.mu.Unlock()
	// A cancelled call unlocks the database, because containerd also cancels the call of the snapshotter.
	short, cancel := context.WithCancel(r.Ctx)
	cancelled := testkit.Async(func() (string, error) { return r.Pull(short, tag, "remote") })
	<-m.hung
	cancel()
	if _, err := cancelled(); err == nil {
		t.Error("a cancelled pull succeeded")
	}
	other, _ := r.Push("other:v1", images.Options{Version: "other"}, images.HostPlatform())
	otherID := r.MustPull(other, "")

	remote := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, tag, "remote") })
	<-m.hung
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("ImageStatus returned %q, want %s", got, id)
	}
	if got := slices.Sorted(maps.Keys(r.Listed())); !slices.Equal(got, slices.Sorted(slices.Values([]string{id, otherID}))) {
		t.Errorf("ListImages returned %q, want %s and %s", got, id, otherID)
	}
	if img := r.MustStatus(tag, "remote"); img != nil {
		t.Errorf("ImageStatus returned an image whose snapshot is not committed: %v", img)
	}
	if got := r.MustPull(byDigest, ""); got != id {
		t.Errorf("a pull by digest of an image on the node returned %q, want %s", got, id)
	}
	another, _ := r.Push("another:v1", images.Options{Version: "another"}, images.HostPlatform())
	waiting := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, another, "") })
	m.mu.Lock()
	m.commit = nil
	m.mu.Unlock()
	m.setFault(nil)
	for what, pulled := range map[string]func() (string, error){"the pull that hung": remote, "the pull that waited for it": waiting} {
		if _, err := pulled(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.WantRun("remote", tag, opts.Line(0))
	r.WantRun("", another, images.Options{Version: "another"}.Line(0))
}

// TestCheckWithoutASnapshotter checks that a repair does not drop the keys of a snapshotter that is down, and that the image is
// not unpacked in another one.
func TestCheckWithoutASnapshotter(t *testing.T) {
	t.Parallel()
	r, m := newProxyRig(t)
	tag, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	id := r.MustPull(tag, "remote")
	m.kill(t)
	r.KillAndRestart(nil)
	r.Reg.Down()
	resp, err := r.Control().Check(r.Ctx, &api.CheckRequest{Repair: true})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, f := range resp.Findings {
		if strings.Contains(f.Subject, "on remote") {
			found++
		}
		if f.Repaired || f.Error == "" {
			t.Errorf("a finding is repaired or has no error: %v", f)
		}
	}
	if found != 2 {
		t.Errorf("got %d findings for remote, want 2: %v", found, resp.Findings)
	}
	m.start(t)
	testkit.EventuallyIn(t, time.Minute, "the image is available again", func(ctx context.Context) (bool, error) {
		img, err := r.ImageStatus(ctx, tag, "remote")
		return img.GetId() == id, err
	})
	if got := r.MustStatus(tag, "").GetSpec().GetAnnotations()["io.imagepin.targets"]; !strings.HasSuffix(got, " on remote") {
		t.Errorf("the image is unpacked for %q, want only remote", got)
	}
}

// newSmallDiskRig returns a node whose root is a filesystem of the given size.
func newSmallDiskRig(t *testing.T, megabytes int64) *testkit.Rig {
	t.Helper()
	r := testkit.NewRig(t, node.Options{})
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	disk := r.Path("disk.img")
	f, err := os.Create(disk)
	if err == nil {
		err = errors.Join(f.Truncate(megabytes<<20), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.ext4", "-q", "-m", "0", disk)
	run(t, "mount", "-o", "loop", disk, r.Path("root"))
	t.Cleanup(func() { _ = syscall.Unmount(r.Path("root"), syscall.MNT_DETACH) })
	if err := r.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

// fillDisk fills the disk of a node until free bytes are left. undo removes the filler.
func fillDisk(r *testkit.Rig, free int64) (undo func()) {
	r.T.Helper()
	path := r.Path("root", "filler")
	var fs syscall.Statfs_t
	if err := syscall.Statfs(r.Path("root"), &fs); err != nil {
		r.T.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		r.T.Fatal(err)
	}
	defer f.Close()
	const slack = 1 << 20 // for the file's own metadata
	if err := syscall.Fallocate(int(f.Fd()), 0, 0, int64(fs.Bavail)*fs.Bsize-free-slack); err != nil {
		r.T.Fatal(err)
	}
	for block := make([]byte, 4096); free == 0 && err == nil; {
		if _, err = f.Seek(0, io.SeekEnd); err == nil {
			_, err = f.Write(block)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			r.T.Fatal(err)
		}
	}
}

// TestDiskFull lets containerd's disk become full while a pull fetches a layer, while it unpacks it, and before it
// writes anything. The pull fails with an error that names the cause, and succeeds when there is space. Other images
// stay available.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	r := newSmallDiskRig(t, 128)
	kept := images.Options{Version: "kept"}
	tag, _ := r.Push("kept:v1", kept, images.HostPlatform())
	id := r.MustPull(tag, "")
	r.WantRun("", tag, kept.Line(0))
	const layer = 16 << 20
	for what, free := range map[string]int64{"fetching": layer / 2, "unpacking": layer + layer/2, "writing anything": 0} {
		opts := images.Options{Version: what, Random: []images.Random{{Size: layer}}}
		ref, _ := r.Push("big:v1", opts, images.HostPlatform())
		r.Collect()
		before := r.MustState()
		undo := fillDisk(r, free)
		_, err := r.Pull(r.Ctx, ref, "")
		wantPullError(t, err, "no space left")
		if got := r.MustStatus(tag, "").GetId(); got != id {
			t.Errorf("%s: ImageStatus of the other image returned %q, want %s", what, got, id)
		}
		if free > 0 {
			r.WantRun("", tag, kept.Line(0))
		}
		undo()
		if free > 0 {
			r.WantState("after a full disk while "+what, before)
		}
		bigID := r.MustPull(ref, "")
		r.WantRun("", ref, opts.Line(0))
		r.MustRemove(bigID, "")
	}
}

// TestReadOnly makes containerd's filesystem read-only, as ext4 does on an error. Pulls fail with an error that names
// the cause, images stay listed, and everything works after the filesystem is mounted again.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	r := newSmallDiskRig(t, 96)
	kept := images.Options{Version: "kept"}
	tag, _ := r.Push("kept:v1", kept, images.HostPlatform())
	id := r.MustPull(tag, "")
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	run(t, "sync", "-f", r.Path("root")) // unwritten data would be lost
	// This aborts the journal. A plain remount fails while files are open for writing.
	run(t, "mount", "-o", "remount,abort", r.Path("root"))
	_, err := r.Pull(r.Ctx, ref, "")
	if err == nil || !strings.Contains(err.Error(), "read-only file system") && !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("a pull on a read-only filesystem: got %v, want an error that names the cause", err)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("ImageStatus returned %q, want %s", got, id)
	}
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	run(t, "umount", r.Path("root"))
	// Mount a copy: while the mount namespace of another test's container has the filesystem, the kernel would mount the
	// aborted one again.
	run(t, "cp", "--sparse=always", r.Path("disk.img"), r.Path("again.img"))
	_ = exec.Command("e2fsck", "-fy", r.Path("again.img")).Run() // exits with 1 after a repair
	run(t, "mount", "-o", "loop", r.Path("again.img"), r.Path("root"))
	if err := r.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("after a new mount: ImageStatus returned %q, want %s", got, id)
	}
	r.WantRun("", tag, kept.Line(0))
	r.MustPull(ref, "")
	r.WantRun("", ref, images.Options{}.Line(0))
}
