package command

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v3"

	"github.com/imagepin/imagepin/cmd/imagepin/internal/registrytest"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// lockDir is a directory with manifests and a lock.
type lockDir struct {
	t    *testing.T
	path string
}

// newLockDir returns a new directory, and sets an empty configuration of docker.
func newLockDir(t *testing.T) lockDir {
	t.Helper()
	d := lockDir{t, t.TempDir()}
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	return d
}

func (d lockDir) file(name string) string { return filepath.Join(d.path, name) }

func (d lockDir) write(name, text string) string {
	d.t.Helper()
	path := d.file(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		d.t.Fatal(err)
	}
	return path
}

func (d lockDir) read(name string) string {
	d.t.Helper()
	data, err := os.ReadFile(d.file(name))
	if err != nil {
		d.t.Fatal(err)
	}
	return string(data)
}

// lock returns the lock in a file.
func (d lockDir) lock(name string) *lock.Lock {
	d.t.Helper()
	l, err := lock.Parse([]byte(d.read(name)))
	if err != nil {
		d.t.Fatal(err)
	}
	return l
}

// run runs imagepin lock without hosts.toml.
func (d lockDir) run(stdin string, args ...string) result {
	d.t.Helper()
	return runAt(d.t, "/absent", strings.NewReader(stdin), append([]string{"lock", "--hosts-dir", d.file("certs.d")}, args...)...)
}

// must is run, and fails if the command does.
func (d lockDir) must(stdin string, args ...string) result {
	d.t.Helper()
	r := d.run(stdin, args...)
	if r.code != 0 {
		d.t.Fatalf("%v: exit code %d: %s", args, r.code, r.err)
	}
	return r
}

// pod returns a manifest.
func pod(images ...string) string {
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
	for i, image := range images {
		text += fmt.Sprintf("  - {name: c%d, image: %q}\n", i, image)
	}
	return text
}

func TestLock(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	amd, arm := r.Manifest("cart", "linux/amd64"), r.Manifest("cart", "linux/arm64/v8")
	attestation := r.Manifest("attestation", "linux/amd64")
	attestation.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"}
	attestation.Annotations = map[string]string{"vnd.docker.reference.type": "attestation-manifest"}
	index := r.Blobs.Index(amd, arm, attestation)
	cart := r.Push("shop/cart:v7", index)
	single := r.Manifest("web", "linux/arm/v7")
	web := r.Push("shop/web:latest", single)
	chart := r.Blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		MediaType: ocispec.MediaTypeImageManifest, Config: r.Blobs.AddJSON("application/vnd.cncf.helm.config.v1+json", map[string]string{}),
	})
	model := r.Push("shop/model:1", chart)
	byDigest := r.Host() + "/shop/cart:v7@" + index.Digest.String()
	d.write("m/a.yaml", pod(cart, strings.TrimSuffix(web, ":latest"), byDigest))
	d.write("m/b.yaml", pod(web, cart))
	d.write("m/list.txt", model+"\n")

	got := d.must("", "-f", d.file("m"), "-o", d.file("lock.yaml"))
	if want := "Locked 5 references (4 images, 1 registry)\nWrote " + d.file("lock.yaml") + "\nDigest of the lock: "; !strings.HasPrefix(got.err, want) || got.out != "" {
		t.Errorf("got %q and %q, want %q", got.out, got.err, want)
	}
	platforms := map[string]digest.Digest{"linux/amd64": amd.Digest, "linux/arm64": arm.Digest}
	repo := r.Host() + "/shop/"
	want := []lock.Image{
		{ID: cart, Platforms: platforms}, {ID: byDigest, Platforms: platforms}, {ID: model},
		{ID: repo + "web", Platforms: map[string]digest.Digest{"linux/arm/v7": single.Digest}},
		{ID: web, Platforms: map[string]digest.Digest{"linux/arm/v7": single.Digest}},
	}
	refs := []string{repo + "cart@" + index.Digest.String(), repo + "cart@" + index.Digest.String(), repo + "model@" + chart.Digest.String(), repo + "web@" + single.Digest.String(), repo + "web@" + single.Digest.String()}
	images := d.lock("lock.yaml").Images
	if len(images) != len(want) {
		t.Fatalf("got %d images, want %d", len(images), len(want))
	}
	for i, image := range images {
		if image.ID != want[i].ID || image.Ref.String() != refs[i] || fmt.Sprint(image.Platforms) != fmt.Sprint(want[i].Platforms) || image.Annotations != nil {
			t.Errorf("got %+v, want %+v (%s)", image, want[i], refs[i])
		}
	}
}

// TestLockRequests counts the requests for each reference: two for an index, and one more for a single manifest.
func TestLockRequests(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	var list, want []string
	for i := range 500 {
		repo := fmt.Sprintf("shop/app%d", i)
		var root ocispec.Descriptor
		if i%10 == 0 {
			root = r.Manifest(repo, "linux/amd64")
			r.Push(repo+":1", root)
		} else {
			root = r.Image(repo+":1", repo, "linux/amd64", "linux/arm64")
		}
		list = append(list, r.Host()+"/"+repo+":1")
		want = append(want, "HEAD /v2/"+repo+"/manifests/1", "GET /v2/"+repo+"/manifests/"+root.Digest.String())
		if i%10 == 0 {
			want = append(want, "GET /v2/"+repo+"/blobs/"+configOf(t, r, root))
		}
	}
	d.must(strings.Join(append(list, list...), "\n"), "-f", "-", "--concurrency", "4", "-o", d.file("lock.yaml"))
	got := r.Requests()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %d requests, want %d", len(got), len(want))
	}
	if n := r.MaxConcurrent(); n > 4 {
		t.Errorf("got %d requests at one time, want at most 4", n)
	}
	if n := len(d.lock("lock.yaml").Images); n != 500 {
		t.Errorf("got %d images, want 500", n)
	}
}

// configOf returns the digest of the configuration of a manifest.
func configOf(t *testing.T, r *registrytest.Registry, manifest ocispec.Descriptor) string {
	t.Helper()
	_, after, ok := strings.Cut(string(r.Blobs[manifest.Digest]), `"config":`)
	if !ok {
		t.Fatal("the manifest has no configuration")
	}
	_, after, _ = strings.Cut(after, `"digest":"`)
	d, _, _ := strings.Cut(after, `"`)
	return d
}

// TestLockIsDeterministic checks that the order of the answers has no effect on the bytes.
func TestLockIsDeterministic(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	var refs []string
	for i := range 30 {
		tag := fmt.Sprintf("shop/app%d:1", i)
		r.Image(tag, tag, "linux/amd64", "linux/arm64", "linux/s390x")
		refs = append(refs, r.Host()+"/"+tag)
	}
	first := d.must(strings.Join(refs, "\n"), "-f", "-")
	slices.Reverse(refs)
	if second := d.must(strings.Join(refs, "\n"), "-f", "-", "--concurrency", "1"); second.out != first.out {
		t.Errorf("got\n%s\nand then\n%s", first.out, second.out)
	}
	d.write("lock.yaml", first.out)
	if want := d.lock("lock.yaml"); len(want.Images) != 30 {
		t.Errorf("got %d images", len(want.Images))
	}
}

func TestLockCheck(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	old := r.Image("shop/cart:v7", "cart", "linux/amd64")
	web := r.Image("shop/web:1", "web", "linux/amd64")
	gone := r.Image("shop/gone:1", "gone", "linux/amd64")
	cart := r.Host() + "/shop/cart:v7"
	d.write("m.yaml", pod(cart, r.Host()+"/shop/gone:1"))
	d.must("", "-f", d.file("m.yaml"), "-o", d.file("lock.yaml"))
	before := d.read("lock.yaml")
	if got := d.must("", "-f", d.file("m.yaml"), "--check", d.file("lock.yaml")); got.out != d.file("lock.yaml")+" is up to date: 2 references\n" {
		t.Errorf("got %q", got.out)
	}
	moved := r.Image("shop/cart:v7", "cart 2", "linux/amd64")
	d.write("m.yaml", pod(cart, r.Host()+"/shop/web:1"))
	if got := d.run("", "-f", d.file("m.yaml"), "--check", d.file("lock.yaml")); !strings.Contains(got.out, "  "+short(old.Digest.String())+"  "+short(moved.Digest.String())+"\n") {
		t.Errorf("got\n%s", got.out)
	}
	got := d.run("", "-f", d.file("m.yaml"), "--check", d.file("lock.yaml"), "--no-trunc")
	var want bytes.Buffer
	_ = table(&want, []string{"REFERENCE", "LOCKED", "NOW"}, [][]string{
		{cart, old.Digest.String(), moved.Digest.String()},
		{r.Host() + "/shop/gone:1", gone.Digest.String(), "-"},
		{r.Host() + "/shop/web:1", "-", web.Digest.String()},
	})
	if got.code != exitChanged || got.out != want.String() {
		t.Errorf("exit code %d, got\n%s\nwant\n%s%s", got.code, got.out, want.String(), got.err)
	}
	if d.read("lock.yaml") != before {
		t.Error("--check has changed the lock")
	}
}

func TestLockUpdate(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	r.Image("shop/cart:v7", "cart", "linux/amd64")
	r.Image("shop/web:latest", "web", "linux/amd64")
	cart, web := r.Host()+"/shop/cart:v7", r.Host()+"/shop/web"
	d.must(cart+"\n"+web+"\n"+web+":latest", "-f", "-", "-o", d.file("lock.yaml"))
	before := d.lock("lock.yaml")
	r.Image("shop/cart:v7", "cart 2", "linux/amd64")
	moved := r.Image("shop/web:latest", "web 2", "linux/amd64", "linux/arm64")
	r.Requests()
	got := d.must("", "--update", web, "-o", d.file("lock.yaml"))
	if n := len(r.Requests()); n != 2 {
		t.Errorf("got %d requests, want 2", n)
	}
	if want := fmt.Sprintf("%s:latest: %s, was %s\n", web, moved.Digest, before.Images[1].Ref.Digest()); !strings.Contains(got.err, want) {
		t.Errorf("got %q, want %q", got.err, want)
	}
	after := d.lock("lock.yaml")
	if len(after.Images) != 3 || after.Images[0].Ref.String() != before.Images[0].Ref.String() {
		t.Errorf("got %+v", after.Images)
	}
	for _, i := range after.Images[1:] {
		if i.Ref.Digest() != moved.Digest || len(i.Platforms) != 2 {
			t.Errorf("got %+v, want %s", i, moved.Digest)
		}
	}
	if got := d.must("", "--lock", d.file("lock.yaml"), "--update", cart); !strings.Contains(got.out, "kind: ImagesLock") || d.lock("lock.yaml").Images[0].Ref.String() != before.Images[0].Ref.String() {
		t.Error("--update without --output has changed the file")
	}
	if got := d.run("", "--update", r.Host()+"/shop/other:1", "-o", d.file("lock.yaml")); got.code != 1 || !strings.Contains(got.err, "has no reference "+r.Host()+"/shop/other:1") {
		t.Errorf("got %q", got.err)
	}
}

// TestLockFails checks that all failures are printed, and that nothing is written.
func TestLockFails(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	r.Image("shop/cart:v7", "cart", "linux/amd64")
	missing := r.Host() + "/shop/cart@" + digest.FromString("missing").String()
	d.write("m/a.yaml", pod(r.Host()+"/shop/cart:v7", r.Host()+"/shop/a:1"))
	d.write("m/b.yaml", "---\n"+pod(missing))
	d.write("lock.yaml", "unchanged")
	got := d.run("", "-f", d.file("m"), "-o", d.file("lock.yaml"))
	for _, want := range []string{
		"2 of 3 references cannot be locked, nothing is written:\n",
		d.file("m/a.yaml") + ", document 1, spec.containers[1].image: CannotPullImageManifest: " + r.Host() + "/shop/a:1:",
		d.file("m/b.yaml") + ", document 1, spec.containers[0].image: CannotPullImageManifest: " + missing + ":",
	} {
		if !strings.Contains(got.err, want) {
			t.Errorf("got\n%s\nwant %q", got.err, want)
		}
	}
	if got.code != 1 || d.read("lock.yaml") != "unchanged" {
		t.Errorf("exit code %d, lock %q", got.code, d.read("lock.yaml"))
	}
	if files, _ := os.ReadDir(d.path); len(files) != 2 {
		t.Errorf("got files %v", files)
	}
}

// TestLockOfSilentRegistry checks that a registry that does not answer gets few requests.
func TestLockOfSilentRegistry(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	var tries atomic.Int64
	r.Answer = func(w http.ResponseWriter, _ *http.Request) bool {
		tries.Add(1)
		w.WriteHeader(http.StatusBadGateway)
		return true
	}
	var list []string
	for i := range 200 {
		list = append(list, fmt.Sprintf("%s/shop/app:%d", r.Host(), i))
	}
	got := d.run(strings.Join(list, "\n"), "-f", "-", "--concurrency", "4")
	if got.code != 1 || !strings.Contains(got.err, "200 of 200 references cannot be locked") || !strings.Contains(got.err, r.Host()+" does not answer") {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
	if n := tries.Load(); n > maxUnavailable+4 {
		t.Errorf("got %d requests, want at most %d", n, maxUnavailable+4)
	}
}

func TestLockSandboxImage(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	pause := r.Host() + "/pause:3"
	r.Image("pause:3", "pause", "linux/amd64")
	for name, config := range map[string]string{
		"version 3": fmt.Sprintf("version = 3\n[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = %q\n", pause),
		"version 2": fmt.Sprintf("version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = %q\n", pause),
	} {
		d.must("", "--containerd-config", d.write("config.toml", config), "-o", d.file("lock.yaml"))
		if l := d.lock("lock.yaml"); len(l.Images) != 1 || l.Images[0].ID != pause {
			t.Errorf("%s: got %+v", name, l.Images)
		}
	}
	d.must(r.Host()+"/pause:3\n", "-f", "-", "--sandbox-image", pause, "-o", d.file("lock.yaml"))
	if l := d.lock("lock.yaml"); len(l.Images) != 1 {
		t.Errorf("got %+v", l.Images)
	}
	got := d.run("", "--containerd-config", d.write("config.toml", "version = 3\n"))
	if got.code != 1 || !strings.Contains(got.err, "config.toml sets no sandbox image") {
		t.Errorf("got %q", got.err)
	}
	got = d.run("", "--containerd-config", d.write("config.toml", "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nsandbox_image = 'Not A Reference'\n"))
	if want := d.file("config.toml") + `, [plugins."io.containerd.grpc.v1.cri"] sandbox_image: "Not A Reference"`; got.code != 1 || !strings.Contains(got.err, want) {
		t.Errorf("got %q, want %q", got.err, want)
	}
}

func TestLockWithHostsAndHelper(t *testing.T) {
	mirror, d := registrytest.New(t), newLockDir(t)
	index := mirror.Image("shop/cart:v7", "cart", "linux/amd64")
	mirror.Answer = func(w http.ResponseWriter, req *http.Request) bool {
		if user, password, _ := req.BasicAuth(); user == "user" && password == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
	d.write("certs.d/registry.example/hosts.toml", fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", mirror.URL))
	d.write("bin/docker-credential-test", "#!/bin/sh\necho '{\"Username\":\"user\",\"Secret\":\"secret\"}'\n")
	if err := os.Chmod(d.file("bin/docker-credential-test"), 0o755); err != nil {
		t.Fatal(err)
	}
	d.write("docker/config.json", fmt.Sprintf(`{"credHelpers": {%q: "test"}}`, mirror.Host()))
	t.Setenv("DOCKER_CONFIG", d.file("docker"))
	t.Setenv("PATH", d.file("bin")+":"+os.Getenv("PATH"))
	got := d.must("registry.example/shop/cart:v7", "-f", "-")
	if want := "image: registry.example/shop/cart@" + index.Digest.String(); !strings.Contains(got.out, want) {
		t.Errorf("got\n%s\nwant %q", got.out, want)
	}
}

func TestLockFlags(t *testing.T) {
	d := newLockDir(t)
	manifest := d.write("m.yaml", pod("registry.example/shop/cart:v7"))
	for args, want := range map[string]string{
		"":                                      "which images?",
		"-f " + manifest + " --update x":        "--update works on an existing lock",
		"--update x":                            "--update needs the existing lock",
		"--lock x -f " + manifest:               "--lock is for --update",
		"-f " + manifest + " --check a -o b":    "--check writes nothing",
		"-f " + manifest + " -o json":           `"json" for flag -o: it is a format`,
		"-f " + manifest + " --output=yaml":     "use ./yaml",
		"-f " + manifest + " --concurrency 0":   "--concurrency must be at least 1",
		"-f " + manifest + " extra":             `unknown command "extra"`,
		"-f " + d.file("absent"):                "no such file",
		"-f " + d.write("e.yaml", "kind: None"): "no images in",
		"--update UPPER -o " + manifest:         "not a lock",
	} {
		if got := d.run("", strings.Fields(args)...); got.code != 1 || !strings.Contains(got.err, want) || got.out != "" {
			t.Errorf("%q: exit code %d, got %q, want %q", args, got.code, got.err, want)
		}
	}
}

// TestLockAndSubcommands checks that the flags of lock do not hide those of its subcommands.
func TestLockAndSubcommands(t *testing.T) {
	var format string
	root := (&app{}).root()
	parent := root.Command("lock")
	parent.Commands = append(parent.Commands, &cli.Command{Name: "sub", Flags: []cli.Flag{outputFlag()}, Action: func(_ context.Context, c *cli.Command) error {
		format = c.String("output")
		return nil
	}})
	if err := root.Run(t.Context(), strings.Fields("imagepin lock sub -o json")); err != nil || format != "json" {
		t.Errorf("got format %q, %v, want json", format, err)
	}
}

func TestLockTimeout(t *testing.T) {
	r, d := registrytest.New(t), newLockDir(t)
	r.Answer = func(_ http.ResponseWriter, req *http.Request) bool {
		<-req.Context().Done()
		return true
	}
	got := runAt(t, "/absent", strings.NewReader(r.Host()+"/shop/cart:v7"), "--timeout", (200 * time.Millisecond).String(), "lock", "--hosts-dir", d.path, "-f", "-")
	if got.code != 1 || !strings.Contains(got.err, "timed out after 200ms (--timeout)") {
		t.Errorf("exit code %d: %s", got.code, got.err)
	}
}

// TestWriteFile checks that links remain, and that other files than regular ones are not replaced.
func TestWriteFile(t *testing.T) {
	d := newLockDir(t)
	d.write("target", "old")
	if err := os.Symlink("target", d.file("link")); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(d.file("link"), []byte("new")); err != nil || d.read("target") != "new" {
		t.Errorf("got %q, %v", d.read("target"), err)
	}
	if info, err := os.Lstat(d.file("link")); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("got %v, %v, want a link", info, err)
	}
	if err := writeFile(os.DevNull, []byte("new")); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("got %v, %v, want a device", info.Mode(), err)
	}
	if err := writeFile(d.file("absent/lock.yaml"), nil); err == nil {
		t.Error("got no error")
	}
}
