package apply

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"google.golang.org/grpc/codes"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// entry is an entry of a bundle.
type entry struct {
	header tar.Header
	data   []byte
}

func readEntries(t *testing.T, path string) (all []entry) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, entry{tar.Header{Typeflag: h.Typeflag, Name: h.Name, Size: h.Size, Mode: h.Mode}, data})
	}
}

func archive(t *testing.T, all []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range all {
		h := e.header
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(e.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func compressed(t *testing.T, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// hugeEntry returns an archive whose index.json has a size of a gigabyte, and no content.
func hugeEntry(t *testing.T, first []entry) []byte {
	t.Helper()
	b := archive(t, first)
	h := &tar.Header{Typeflag: tar.TypeReg, Name: "index.json", Size: 1 << 30, Mode: 0o644}
	var header bytes.Buffer
	if err := tar.NewWriter(&header).WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	return append(b[:1024], header.Bytes()...)
}

// hostileBundles returns changed bundles by what is wrong with them.
func hostileBundles(t *testing.T, good string) map[string][]byte {
	t.Helper()
	whole, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	changed := func(change func(all []entry) []entry) []byte { return archive(t, change(readEntries(t, good))) }
	last := len(readEntries(t, good)) - 1
	flipped := func(at int) []byte {
		b := bytes.Clone(whole)
		b[at] ^= 1
		return b
	}
	return map[string][]byte{
		"cut in the metadata":       whole[:2000],
		"cut in a layer":            whole[:len(whole)-3000],
		"without its end":           whole[:len(whole)-512],
		"with data after its end":   append(bytes.Clone(whole), 1),
		"a flipped bit in a layer":  flipped(len(whole) - 3000),
		"a flipped bit in a header": flipped(600),
		"reordered":                 changed(func(e []entry) []entry { e[last], e[last-1] = e[last-1], e[last]; return e }),
		"without a layer":           changed(func(e []entry) []entry { return e[:last] }),
		"without a manifest":        changed(func(e []entry) []entry { return append(e[:6:6], e[7:]...) }),
		"with a layer twice":        changed(func(e []entry) []entry { return append(e, e[last]) }),
		"with a path upwards":       changed(func(e []entry) []entry { e[last].header.Name = "../../../../tmp/x"; return e }),
		"with a link": changed(func(e []entry) []entry {
			e[last] = entry{header: tar.Header{Typeflag: tar.TypeSymlink, Name: e[last].header.Name, Linkname: "/etc/shadow", Mode: 0o644}}
			return e
		}),
		"with a hard link": changed(func(e []entry) []entry {
			e[last] = entry{header: tar.Header{Typeflag: tar.TypeLink, Name: e[last].header.Name, Linkname: e[last-1].header.Name, Mode: 0o644}}
			return e
		}),
		"with another content of a layer": changed(func(e []entry) []entry { e[last].data = bytes.Repeat([]byte("x"), len(e[last].data)); return e }),
		"with a huge entry":               hugeEntry(t, readEntries(t, good)[:1]),
		"a zip bomb":                      compressed(t, append(archive(t, readEntries(t, good)[:1])[:1024], make([]byte, 1<<30)...)),
		"only compressed data":            compressed(t, bytes.Repeat([]byte("no archive "), 1000)),
	}
}

// TestHostileBundles applies changed bundles by path and from the drop directory. All fail, nothing on the node changes, and
// it goes on serving.
func TestHostileBundles(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: dropDirectories})
	ref := r.Reg.Ref("shop/app:v1")
	old := r.Version("shop/app:v1", "old")
	imagepinWants(r, 0, []string{"apply", writeLock(r, "old.yaml", map[string]string{ref: old})})
	moved := r.Version("shop/app:v1", "moved")
	good := makeBundle(r, "good.tar", writeLock(r, "new.yaml", map[string]string{ref: moved}))
	r.MustRemovePod(r.MustPod(""))
	r.Collect()
	before := r.MustState()
	if err := os.Mkdir(r.Path("bundles"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range hostileBundles(t, good) {
		path := r.Path("bad.tar")
		dropped := filepath.Join(r.Path("bundles"), "bad.tar")
		for _, p := range []string{path, dropped} {
			if err := os.WriteFile(p, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{{"apply", path}, {"apply"}} {
			out, code := r.Operator(args...)
			if code != 1 || !strings.Contains(out, "InvalidBundle") {
				t.Errorf("imagepin %v of a bundle %s: exit code %d, want InvalidBundle:\n%s", args, name, code, out)
			}
			if len(out) > 2000 {
				t.Errorf("a bundle %s: the error has %d bytes", name, len(out))
			}
		}
		if d := node.Diff(before, r.MustState()); d != "" {
			t.Errorf("a bundle %s changed the node:\n%s", name, d)
		}
	}
	r.KillAndRestart(nil) // with the last one in the drop directory
	r.Eventually("the drop directory is refused", func() bool {
		out, _ := r.Operator("lock", "status")
		return strings.Contains(out, "InvalidBundle")
	})
	testkit.NoLeaks(t, r.Node, before)
	r.WantVersion(node.KubeletPod{Image: ref}, "old")
	if err := os.Remove(filepath.Join(r.Path("bundles"), "bad.tar")); err != nil {
		t.Fatal(err)
	}
	imagepinWants(r, 0, []string{"apply", good}, "Applied lock")
	r.WantVersion(node.KubeletPod{Image: ref}, "moved")
}

const dropDirectories = `
[plugins."io.containerd.imagepin.v1.images"]
locks_directory = "{root}/locks.d"
bundles_directory = "{root}/bundles"
`

// TestIncompleteBundles applies intact bundles that do not have what the node needs.
func TestIncompleteBundles(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	foreign, both := r.Reg.Ref("shop/foreign:v1"), r.Reg.Ref("shop/both:v1")
	_, f := r.Push("shop/foreign:v1", images.Options{Version: "foreign"}, testkit.Foreign)
	old := r.Version("shop/both:v1", "old")
	first := writeLock(r, "first.yaml", map[string]string{both: old})
	_, next := r.Push("shop/both:v1", images.Options{Version: "next", Files: []images.Files{{"/more": []byte("more")}}}, images.HostPlatform(), "linux/arm64")
	second := writeLock(r, "second.yaml", map[string]string{both: testkit.DigestIn(next)})
	bundles := map[string]string{
		makeBundle(r, "foreign.tar", writeLock(r, "foreign.yaml", map[string]string{foreign: testkit.DigestIn(f)})): "NoMatchingPlatform",
		makeBundle(r, "arm.tar.zst", first, "--platform", "linux/arm64"):                                            "NotInBundle",
		makeBundle(r, "since.tar", second, "--since", first):                                                        "NotInBundle",
	}
	r.Reg.Down()
	before := r.MustState()
	for path, reason := range bundles {
		imagepinWants(r, 1, []string{"apply", path}, reason)
		imagepinWants(r, 1, []string{"apply", path, "--dry-run"}, reason)
		testkit.NoLeaks(t, r.Node, before)
	}
	imagepinWants(r, 10, []string{"lock", "status"}, "none", "Failed:")
}

// TestNoBundle passes what is neither a lock nor a bundle, to the command and to the node.
func TestNoBundle(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	ref := r.Reg.Ref("shop/app:v1")
	d := r.Version("shop/app:v1", "1")
	good := writeLock(r, "good.yaml", map[string]string{ref: d})
	text, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(r.Path("fifo.tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"loop.tar": "loop.tar", "dangling.tar": "nowhere", "device.tar": "/dev/zero", "link.yaml": "good.yaml"} {
		if err := os.Symlink(target, r.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	head := "apiVersion: imgpkg.carvel.dev/v1alpha1\nkind: ImagesLock\nimages:\n"
	image := "- image: " + r.Reg.Ref("shop/app") + "@"
	id := "\n  annotations:\n    kbld.carvel.dev/id: " + ref + "\n"
	other := "sha256:" + strings.Repeat("0", 64)
	locks := map[string]string{
		"two digests": head + image + d + id + image + other + id, "no images": head + "[]\n", "empty": "", "not a lock": "kind: Pod\n",
		"huge": head + strings.Repeat(image+d+"\n", 200_000), "an alias": head + "- &a " + image[2:] + d + "\n- *a\nx: *a\n",
	}
	before := r.MustState()
	for name, text := range locks {
		path := r.Path(strings.ReplaceAll(name, " ", "-") + ".yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := r.Operator("apply", path); code != 1 || len(out) > 2000 {
			t.Errorf("a lock %s: exit code %d: %.2000s", name, code, out)
		}
		wantApply(r, &api.ApplyRequest{Path: path}, codes.InvalidArgument, "InvalidLock")
	}
	for path, code := range map[string]codes.Code{
		r.Path("fifo.tar"): codes.InvalidArgument, r.Path(): codes.InvalidArgument, r.Path("device.tar"): codes.InvalidArgument,
		r.Path("dangling.tar"): codes.NotFound, "good.yaml": codes.InvalidArgument, r.Path("none.tar"): codes.NotFound,
	} {
		wantApply(r, &api.ApplyRequest{Path: path}, code)
		if out, code := r.Operator("apply", path); code != 1 {
			t.Errorf("imagepin apply %s: exit code %d: %s", path, code, out)
		}
	}
	if _, err := applied(r, &api.ApplyRequest{Path: r.Path("loop.tar")}); err == nil {
		t.Error("a loop of links is applied")
	}
	for _, q := range []*api.ApplyRequest{
		{}, {Lock: text, Path: good}, {Lock: text, Dropped: true}, {Path: good, Dropped: true}, {Lock: text, Path: good, Dropped: true},
		{Lock: text, Handlers: []string{"none"}},
	} {
		wantApply(r, q, codes.InvalidArgument)
	}
	wantApply(r, &api.ApplyRequest{Dropped: true}, codes.NotFound) // the directories are empty
	if d := node.Diff(before, r.MustState()); d != "" {
		t.Errorf("the node has changed:\n%s", d)
	}
	if _, err := applied(r, &api.ApplyRequest{Path: r.Path("link.yaml")}); err != nil {
		t.Error(err)
	}
	imagepinWants(r, 0, []string{"lock", "status"}, "1 locked, 1 ready")
}

// applied applies a request.
func applied(r *testkit.Rig, q *api.ApplyRequest) (*api.ApplyResult, error) {
	r.T.Helper()
	stream, err := r.Control().Apply(r.Ctx, q)
	if err != nil {
		return nil, err
	}
	var result *api.ApplyResult
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err != nil {
			return nil, err
		}
		if m.GetResult() != nil {
			result = m.GetResult()
		}
	}
}

func wantApply(r *testkit.Rig, q *api.ApplyRequest, code codes.Code, words ...string) {
	r.T.Helper()
	_, err := applied(r, q)
	if err == nil {
		r.T.Errorf("%.200v is applied", q)
		return
	}
	testkit.WantCode(r.T, err, code, words...)
}

// TestBundleChangesMeanwhile changes the file of a bundle after the node has verified it, with the same size and time.
func TestBundleChangesMeanwhile(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true})
	v := testkit.NewVerifier(t, r.Node)
	ref := r.Reg.Ref("shop/app:v1")
	d := r.Version("shop/app:v1", "1")
	bundle := makeBundle(r, "b.tar", writeLock(r, "lock.yaml", map[string]string{ref: d}))
	whole, err := os.ReadFile(bundle)
	if err != nil {
		t.Fatal(err)
	}
	r.Reg.Down()
	before := r.MustState()
	for name, change := range map[string]func(f *os.File) error{
		"a flipped bit": func(f *os.File) error {
			_, err := f.WriteAt([]byte{whole[len(whole)-3000] ^ 1}, int64(len(whole)-3000))
			return err
		},
		"cut": func(f *os.File) error { return f.Truncate(int64(len(whole) - 4000)) },
	} {
		if err := os.WriteFile(bundle, whole, 0o600); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(bundle)
		if err != nil {
			t.Fatal(err)
		}
		v.Pause(true) // the verifiers are called between the verification and the import
		done := testkit.Async(func() (string, error) {
			out, _ := r.Operator("apply", bundle)
			return out, nil
		})
		r.Eventually("the verifier is called", v.Paused)
		f, err := os.OpenFile(bundle, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(change(f), f.Close(), os.Chtimes(bundle, time.Time{}, info.ModTime())); err != nil {
			t.Fatal(err)
		}
		v.Pause(false)
		if out, _ := done(); !strings.Contains(out, "InvalidBundle") {
			t.Errorf("%s: got %s, want InvalidBundle", name, out)
		}
		testkit.NoLeaks(t, r.Node, before)
	}
	imagepinWants(r, 10, []string{"lock", "status"}, "InvalidBundle")
	if err := os.WriteFile(bundle, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	imagepinWants(r, 0, []string{"apply", bundle}, "Applied lock")
}

// TestUnprintableNames has a file in the drop directory whose name is not UTF-8. The node reports it.
func TestUnprintableNames(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Extra: dropDirectories})
	ref := r.Reg.Ref("shop/app:v1")
	lock := writeLock(r, "lock.yaml", map[string]string{ref: r.Version("shop/app:v1", "1")})
	if err := os.Mkdir(r.Path("locks.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	dropped := filepath.Join(r.Path("locks.d"), "\xff\x1b[31m.yaml")
	if err := os.Rename(lock, dropped); err != nil {
		t.Fatal(err)
	}
	imagepinWants(r, 0, []string{"apply"}, "Applied lock")
	if out := imagepinWants(r, 0, []string{"lock", "status"}, "1 locked"); strings.Contains(out, "\x1b[31m") {
		t.Errorf("the output has a terminal sequence of a name: %q", out)
	}
	if err := os.WriteFile(dropped, []byte("no lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	imagepinWants(r, 1, []string{"apply"}, "InvalidLock")
	imagepinWants(r, 10, []string{"lock", "status"}, "InvalidLock")
	r.KillAndRestart(nil)
	imagepinWants(r, 1, []string{"status"}, "InvalidLock")
}
