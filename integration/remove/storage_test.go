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

// proxied is a snapshotter in a process of its own as far as containerd can tell: containerd's native one behind a socket, which can
// fail, hang, die and come back.
type proxied struct {
	snapshots.Snapshotter
	socket string
	server *grpc.Server
	served chan error

	mu     sync.Mutex
	fault  func(context.Context) error
	commit func(context.Context) error // of Commit, while which containerd holds its metadata database
	hung   chan struct{}               // gets one element a call that hangs
	alive  chan struct{}               // closed when calls hang no more
}

func newProxied(t *testing.T, r *testkit.Rig) *proxied {
	t.Helper()
	sn, err := native.NewSnapshotter(r.Path("remote"))
	if err != nil {
		t.Fatal(err)
	}
	m := &proxied{Snapshotter: sn, socket: r.Path("remote.sock"), hung: make(chan struct{}, 1000), alive: make(chan struct{})}
	m.start(t)
	t.Cleanup(func() {
		m.set(nil)
		m.kill(t)
	})
	return m
}

func (m *proxied) start(t *testing.T) {
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

func (m *proxied) kill(t *testing.T) {
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

func (m *proxied) set(fault func(context.Context) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.alive)
	m.fault, m.alive = fault, make(chan struct{})
}

// hang keeps every call until its caller gives up or the fault is gone. containerd's garbage collection never gives up.
func (m *proxied) hang(ctx context.Context) error {
	m.mu.Lock()
	alive := m.alive
	m.mu.Unlock()
	m.hung <- struct{}{}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-alive:
		return nil
	}
}

func (m *proxied) faulty(ctx context.Context) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if fault == nil {
		return nil
	}
	return fault(ctx)
}

func (m *proxied) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := m.faulty(ctx); err != nil {
		return nil, err
	}
	return m.Snapshotter.Prepare(ctx, key, parent, opts...)
}

func (m *proxied) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	if err := m.faulty(ctx); err != nil {
		return snapshots.Info{}, err
	}
	return m.Snapshotter.Stat(ctx, key)
}

func (m *proxied) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
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

func (m *proxied) Walk(ctx context.Context, fn snapshots.WalkFunc, filters ...string) error {
	if err := m.faulty(ctx); err != nil {
		return err
	}
	return m.Snapshotter.Walk(ctx, fn, filters...)
}

// onRemote is a node with a handler on a snapshotter behind a socket.
func onRemote(t *testing.T) (*testkit.Rig, *proxied) {
	t.Helper()
	r := testkit.NewRig(t, node.Options{})
	m := newProxied(t, r)
	if err := r.Restart(r.Ctx, func(o *node.Options) {
		o.Handlers = []node.Handler{{Name: "remote", Snapshotter: "remote"}}
		o.Extra = "[proxy_plugins.remote]\ntype = 'snapshot'\naddress = '{root}/remote.sock'\n"
	}); err != nil {
		t.Fatal(err)
	}
	return r, m
}

// wantTyped fails the test unless an error has a name of imagepin's and says what was the matter.
func wantTyped(t *testing.T, err error, says ...string) {
	t.Helper()
	if err == nil {
		t.Error("it succeeded")
		return
	}
	for _, s := range append(says, "CannotPullImage") {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("it says %v, nothing of %q", err, s)
		}
	}
}

// TestSnapshotterFaults has a snapshotter fail, hang, and die: what concerns it fails with an error that says so, the images of the
// others are served and run, and what it has is there again when it is.
func TestSnapshotterFaults(t *testing.T) {
	t.Parallel()
	r, m := onRemote(t)
	opts := images.Options{}
	tag, _ := r.Push("app:v1", opts, images.HostPlatform())
	id := r.MustPull(tag, "remote")
	r.MustPull(tag, "")
	r.WantRun("remote", tag, opts.Line(0))
	next := func(version string) string {
		ref, _ := r.Push("other:"+version, images.Options{Version: version}, images.HostPlatform())
		return ref
	}

	m.set(func(context.Context) error { return errors.New("the disk array is on fire") })
	ref := next("failing")
	_, err := r.Pull(r.Ctx, ref, "remote")
	wantTyped(t, err, "on fire", "remote")
	r.MustPull(ref, "")
	r.WantRun("", ref, images.Options{Version: "failing"}.Line(0))
	m.set(nil)
	r.MustPull(ref, "remote")
	r.WantRun("remote", ref, images.Options{Version: "failing"}.Line(0))

	m.set(m.hang)
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
		t.Error("what is recorded is not listed while the snapshotter hangs")
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("a pull of which the caller had gone succeeded")
	}
	m.set(nil)
	r.MustPull(ref, "remote")
	r.WantRun("remote", ref, images.Options{Version: "hanging"}.Line(0))

	r.Reg.Down()
	for how, start := range map[string]func(){
		"dead":    func() { m.kill(t) },
		"hanging": func() { m.set(m.hang) },
	} {
		start()
		since := time.Now()
		r.KillAndRestart(nil)
		t.Logf("with the snapshotter %s it started in %s", how, time.Since(since))
		r.WantRun("", tag, opts.Line(0))
		if img := r.MustStatus(tag, "remote"); img != nil {
			t.Errorf("with the snapshotter %s its image is listed: %v", how, img)
		}
		if m.set(nil); how == "dead" {
			m.start(t)
		}
		testkit.EventuallyIn(t, 40*time.Second, "the image is there again, after the snapshotter was "+how, func(ctx context.Context) (bool, error) {
			img, err := r.ImageStatus(ctx, tag, "remote")
			return img.GetId() == id, err
		})
		testkit.EventuallyIn(t, 40*time.Second, "it runs, after the snapshotter was "+how, func(ctx context.Context) (bool, error) {
			got, err := r.Run(ctx, "remote", node.ContainerOptions{Image: tag})
			return err == nil && got == opts.Line(0), nil
		})
	}
}

// TestHangInCommit has a snapshotter hang while it commits, when containerd holds its metadata database: nothing can be written, but what is here is
// listed, and pulls that write nothing are answered; and all of it goes on when the snapshotter does.
func TestHangInCommit(t *testing.T) {
	t.Parallel()
	r, m := onRemote(t)
	opts := images.Options{}
	tag, byDigest := r.Push("app:v1", opts, images.HostPlatform())
	id := r.MustPull(tag, "")
	m.mu.Lock()
	m.commit = m.hang
	m.mu.Unlock()
	// A caller that gives up frees it: containerd passes that on to the snapshotter.
	short, cancel := context.WithCancel(r.Ctx)
	given := testkit.Async(func() (string, error) { return r.Pull(short, tag, "remote") })
	<-m.hung
	cancel()
	if _, err := given(); err == nil {
		t.Error("a pull of which the caller had gone succeeded")
	}
	other, _ := r.Push("other:v1", images.Options{Version: "other"}, images.HostPlatform())
	otherID := r.MustPull(other, "")

	remote := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, tag, "remote") })
	<-m.hung
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("what is here is listed as %q", got)
	}
	if got := slices.Sorted(maps.Keys(r.Listed())); !slices.Equal(got, slices.Sorted(slices.Values([]string{id, otherID}))) {
		t.Errorf("the images %q are listed", got)
	}
	if img := r.MustStatus(tag, "remote"); img != nil {
		t.Errorf("what is not committed is listed: %v", img)
	}
	if got := r.MustPull(byDigest, ""); got != id {
		t.Errorf("a pull of what is here gives %q", got)
	}
	another, _ := r.Push("another:v1", images.Options{Version: "another"}, images.HostPlatform())
	waiting := testkit.Async(func() (string, error) { return r.Pull(r.Ctx, another, "") })
	m.mu.Lock()
	m.commit = nil
	m.mu.Unlock()
	m.set(nil)
	for what, pulled := range map[string]func() (string, error){"the pull that hung": remote, "a pull that waited for it": waiting} {
		if _, err := pulled(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	r.WantRun("remote", tag, opts.Line(0))
	r.WantRun("", another, images.Options{Version: "another"}.Line(0))
}

// TestCheckWithoutASnapshotter repairs while a snapshotter is dead: its keys wait for it, and are not dropped.
func TestCheckWithoutASnapshotter(t *testing.T) {
	t.Parallel()
	r, m := onRemote(t)
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
			t.Errorf("it is repaired: %v", f)
		}
	}
	if found != 2 {
		t.Errorf("a check finds %v", resp.Findings)
	}
	m.start(t)
	testkit.EventuallyIn(t, time.Minute, "the image is there again", func(ctx context.Context) (bool, error) {
		img, err := r.ImageStatus(ctx, tag, "remote")
		return img.GetId() == id, err
	})
}

// onSmallDisk moves a stopped node's root to a filesystem of its own.
func onSmallDisk(t *testing.T, megabytes int64) *testkit.Rig {
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

// leave fills the disk until so many bytes are free, and gives what frees them again.
func leave(r *testkit.Rig, free int64) (undo func()) {
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

// TestDiskFull fills containerd's disk before a layer is fetched, before it is unpacked, and to the last block: the pull fails with an
// error that says so and leaves nothing, what is there is listed and runs, and the pull succeeds when there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	r := onSmallDisk(t, 128)
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
		undo := leave(r, free)
		_, err := r.Pull(r.Ctx, ref, "")
		wantTyped(t, err, "no space left")
		if got := r.MustStatus(tag, "").GetId(); got != id {
			t.Errorf("%s: what is there is listed as %q", what, got)
		}
		if free > 0 {
			r.WantRun("", tag, kept.Line(0))
		}
		undo()
		if free > 0 {
			r.WantState("after the disk was full while "+what, before)
		}
		bigID := r.MustPull(ref, "")
		r.WantRun("", ref, opts.Line(0))
		r.MustRemove(bigID, "")
	}
}

// TestReadOnly has the filesystem go read-only under containerd, as ext4 does on an error: pulls fail with an error that says so, what
// is there is listed, and all is well after the filesystem was mounted anew.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	r := onSmallDisk(t, 96)
	kept := images.Options{Version: "kept"}
	tag, _ := r.Push("kept:v1", kept, images.HostPlatform())
	id := r.MustPull(tag, "")
	ref, _ := r.Push("app:v1", images.Options{}, images.HostPlatform())
	run(t, "sync", "-f", r.Path("root")) // what is not on the disk would be lost
	// An aborted journal; a plain remount is refused while files are open for writing.
	run(t, "mount", "-o", "remount,abort", r.Path("root"))
	_, err := r.Pull(r.Ctx, ref, "")
	if err == nil || !strings.Contains(err.Error(), "read-only file system") && !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("a pull says %v", err)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("what is there is listed as %q", got)
	}
	if err := r.Kill9(); err != nil {
		t.Fatal(err)
	}
	run(t, "umount", r.Path("root"))
	// A copy: as long as a container of another test has the filesystem in its mount namespace, the kernel gives out the one that was aborted.
	run(t, "cp", "--sparse=always", r.Path("disk.img"), r.Path("again.img"))
	_ = exec.Command("e2fsck", "-fy", r.Path("again.img")).Run() // 1 is: it was repaired
	run(t, "mount", "-o", "loop", r.Path("again.img"), r.Path("root"))
	if err := r.Start(r.Ctx); err != nil {
		t.Fatal(err)
	}
	if got := r.MustStatus(tag, "").GetId(); got != id {
		t.Errorf("after it was mounted anew the image is %q", got)
	}
	r.WantRun("", tag, kept.Line(0))
	r.MustPull(ref, "")
	r.WantRun("", ref, images.Options{}.Line(0))
}
