package apply

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// smallRoot returns the root of a node on a file system of its own.
func smallRoot(t *testing.T, size string) string {
	t.Helper()
	root, err := node.TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Unmount(root, unix.MNT_DETACH), os.RemoveAll(root)); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Mount("tmpfs", root, "tmpfs", 0, "mode=711,size="+size); err != nil {
		t.Fatal(err)
	}
	return root
}

// fill writes a file so that only some bytes of its file system are free. It returns the path.
func fill(t *testing.T, dir string, free int64) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, int64(st.Bavail)*st.Bsize-free), f.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDiskFull applies a bundle to nodes whose disk is full before the import, during it, and while layers are unpacked. The
// node keeps its lock and what it has, what was imported is removed, and the same apply succeeds when there is space.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Root: smallRoot(t, "150m")})
	ref := r.Reg.Ref("shop/app:v1")
	old := r.Version("shop/app:v1", "old")
	imagepinWants(r, 0, []string{"apply", writeLock(r, "old.yaml", map[string]string{ref: old})})
	random := []images.Random{{Size: 20 << 20, Seed: 1}, {Size: 20 << 20, Seed: 2}}
	_, d := r.Push("shop/app:v1", images.Options{Version: "new", Random: random}, images.HostPlatform())
	lock := writeLock(r, "new.yaml", map[string]string{ref: testkit.DigestIn(d)})
	bundle := filepath.Join(t.TempDir(), "b.tar")
	imagepinWants(r, 0, []string{"bundle", lock, "-o", bundle})
	r.MustRemovePod(r.MustPod(""))
	r.Reg.Down()
	r.Collect()
	before := r.MustState()
	for name, free := range map[string]int64{"before the import": 10 << 20, "while layers are unpacked": 60 << 20, "during the import": 100 << 20} {
		filler := fill(t, r.Root(), free)
		during := func() {}
		if name == "during the import" {
			during = func() { fillMore(t, r.Root()) }
		}
		err := applyAnd(r, bundle, "importing", during)
		if err == nil {
			t.Fatalf("the disk is full %s: the bundle is applied", name)
		}
		testkit.WantCode(t, err, codes.ResourceExhausted, "NotEnoughSpace", "imagepin lock rm --previous")
		if err := errors.Join(os.Remove(filler), os.RemoveAll(filler+"2")); err != nil {
			t.Fatal(err)
		}
		r.Eventually("what was imported is removed when the disk was full "+name, func() bool {
			r.Collect()
			return node.Diff(before, r.MustState()) == ""
		})
		imagepinWants(r, 10, []string{"lock", "status"}, "NotEnoughSpace", "1 locked, 1 ready")
		r.WantVersion(node.KubeletPod{Image: ref}, "old")
		if err := r.RemovePods(r.Ctx); err != nil {
			t.Fatal(err)
		}
	}
	imagepinWants(r, 0, []string{"apply", bundle}, "Applied lock")
	r.WantVersion(node.KubeletPod{Image: ref}, "new")

	// A bundle with the same large layers needs space only for the difference, here its configuration.
	if err := r.Reg.Up(); err != nil {
		t.Fatal(err)
	}
	_, next := r.Push("shop/app:v1", images.Options{Version: "new", Random: random, Labels: map[string]string{"build": "2"}}, images.HostPlatform())
	lock = writeLock(r, "next.yaml", map[string]string{ref: testkit.DigestIn(next)})
	imagepinWants(r, 0, []string{"bundle", lock, "-o", bundle})
	r.Reg.Down()
	fill(t, r.Root(), 8<<20)
	imagepinWants(r, 0, []string{"apply", bundle}, "Applied lock")
}

// fillMore writes another file until a disk is full.
func fillMore(t *testing.T, dir string) {
	f, err := os.Create(filepath.Join(dir, "filler2"))
	if err != nil {
		t.Error(err)
		return
	}
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	_ = f.Close() // the disk is full
}

// applyAnd applies a file, and calls a function when the node reports a phase.
func applyAnd(r *testkit.Rig, path, phase string, then func()) error {
	r.T.Helper()
	stream, err := r.Control().Apply(r.Ctx, &api.ApplyRequest{Path: path})
	if err != nil {
		return err
	}
	for called := false; ; {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !called && m.GetProgress().GetPhase() == phase {
			called = true
			then()
		}
	}
}
