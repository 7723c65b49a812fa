package security

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestHostileRegistry checks that the answers of a malicious registry do not make the node read or write other files,
// or leave anything.
func TestHostileRegistry(t *testing.T) {
	t.Parallel()
	n := testkit.Node(t, node.Options{NoPods: true})
	ctx := testkit.Context(t)
	before := testkit.State(t, n)
	const index = "application/vnd.oci.image.index.v1+json"
	const canaryText = "what only root may read"
	canary := n.Path("canary")
	if err := os.WriteFile(canary, []byte(canaryText), 0o600); err != nil {
		t.Fatal(err)
	}
	right := digest.FromString("{}").String()
	manifest := func(w http.ResponseWriter, d string, size string) {
		w.Header().Set("Content-Type", index)
		w.Header().Set("Docker-Content-Digest", d)
		if size != "" {
			w.Header().Set("Content-Length", size)
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"redirect to a file": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "file://"+canary, http.StatusFound) },
		"redirect of blobs to a file": func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodHead {
				manifest(w, right, "2")
				return
			}
			w.Header().Set("Location", "file://"+canary)
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
		"redirect loop":         func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) },
		"digest that is a path": func(w http.ResponseWriter, r *http.Request) { manifest(w, "sha256:../../../../canary", "2") },
		"digest that is a path, long": func(w http.ResponseWriter, r *http.Request) {
			manifest(w, "sha256:"+strings.Repeat("../", 21)+"x", "2")
		},
		"digest of an unknown algorithm": func(w http.ResponseWriter, r *http.Request) { manifest(w, "md5:d41d8cd98f00b204e9800998ecf8427e", "2") },
		"content with another digest": func(w http.ResponseWriter, r *http.Request) {
			manifest(w, right, "2")
			fmt.Fprint(w, "[]")
		},
		"challenge to a file": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("WWW-Authenticate", `Bearer realm="file://`+canary+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg := httptest.NewServer(answer)
			defer reg.Close()
			ref := strings.TrimPrefix(reg.URL, "http://") + "/app:v1"
			_, err := n.Images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
			if err == nil {
				t.Fatal("the pull succeeded")
			}
			if strings.Contains(err.Error(), canaryText) {
				t.Errorf("the error contains the text of the file: %v", err)
			}
		})
	}
	if b, err := os.ReadFile(canary); err != nil || string(b) != canaryText {
		t.Errorf("the canary file: got %q, %v, want %q", b, err, canaryText)
	}
	outside, err := filepath.Glob(n.Path("root", "*", "x"))
	if err != nil || len(outside) != 0 {
		t.Errorf("files outside of the content store: got %q, %v, want none", outside, err)
	}
	testkit.NoLeaks(t, n, before)
}

// TestHugeManifest checks that a huge manifest is rejected. If its size is declared, it is not read. Otherwise it is
// not kept in memory or on disk.
func TestHugeManifest(t *testing.T) {
	t.Parallel()
	n := testkit.Node(t, node.Options{NoPods: true})
	ctx := testkit.Context(t)
	before := testkit.State(t, n)
	resident := peakMemory(t, n.PID())
	const size = 256 << 20
	chunk := bytes.Repeat([]byte(" "), 1<<20)
	for name, length := range map[string]string{"declared size": fmt.Sprint(size), "undeclared size": ""} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
				w.Header().Set("Docker-Content-Digest", digest.FromString("x").String())
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				if r.Method == http.MethodHead {
					return
				}
				for range size >> 20 {
					k, err := w.Write(chunk)
					sent.Add(int64(k))
					if err != nil {
						return
					}
				}
			}))
			defer reg.Close()
			ref := strings.TrimPrefix(reg.URL, "http://") + "/app:v1"
			if _, err := n.Images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}}); err == nil || !strings.Contains(err.Error(), "rejecting 268435456 byte manifest") {
				t.Fatalf("got %v, want an error that rejects the manifest", err)
			}
			if length != "" && sent.Load() != 0 {
				t.Errorf("the node fetched %d MiB of the manifest", sent.Load()>>20)
			}
			if grown := peakMemory(t, n.PID()) - resident; grown > size/2 {
				t.Errorf("the peak memory of the process grew by %d MiB", grown>>20)
			}
		})
	}
	testkit.NoLeaks(t, n, before)
}

// TestHugeManifestInAnIndex checks that a huge manifest that an index names is not fetched.
func TestHugeManifestInAnIndex(t *testing.T) {
	t.Parallel()
	n := testkit.Node(t, node.Options{NoPods: true})
	ctx := testkit.Context(t)
	before := testkit.State(t, n)
	const size = 256 << 20
	child := digest.FromString("huge")
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{`+
		`"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":%q}}]}`,
		child, size, strings.TrimPrefix(images.HostPlatform(), "linux/"))
	var requested atomic.Bool
	reg := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, child.Encoded()) {
			requested.Store(true)
			return
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.index.v1+json")
		w.Header().Set("Docker-Content-Digest", digest.FromString(index).String())
		w.Header().Set("Content-Length", fmt.Sprint(len(index)))
		if r.Method == http.MethodGet {
			fmt.Fprint(w, index)
		}
	}))
	defer reg.Close()
	ref := strings.TrimPrefix(reg.URL, "http://") + "/app:v1"
	_, err := n.Images().PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: ref}})
	if err == nil || !strings.Contains(err.Error(), "ContentCorrupt") || !strings.Contains(err.Error(), fmt.Sprint(size)) {
		t.Errorf("got %v, want ContentCorrupt with the size %d", err, size)
	}
	if requested.Load() {
		t.Error("the node requested the manifest")
	}
	testkit.NoLeaks(t, n, before)
}

// TestErrorsAreBounded checks that errors and their lines in the log have at most 4 KB, however much text a registry,
// an image, a verifier or a caller sends.
func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{NoPods: true})
	const most = 4 << 10
	index := func(entries int, name func(int) string) images.Raw {
		var b strings.Builder
		for i := range entries {
			fmt.Fprintf(&b, `,{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":7,"platform":{"os":"linux","architecture":%q}}`,
				digest.FromString(fmt.Sprint(i)), name(i))
		}
		const mediaType = "application/vnd.oci.image.index.v1+json"
		return images.Raw{MediaType: mediaType, Body: fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, mediaType, b.String()[1:])}
	}
	reg.PushRaw("many:v1", index(20_000, func(i int) string { return fmt.Sprintf("a%05d", i) }))
	reg.PushRaw("long:v1", index(50, func(i int) string { return fmt.Sprintf("a%02d%s", i, strings.Repeat("→", 7000)) }))
	testkit.Push(t, reg, "verified:v1", testkit.App(t, images.Options{}))
	huge := strings.Repeat("x", 60_000)
	verifier := "#!/bin/sh\ncase $2 in *verified*) head -c 30000 /dev/zero | tr '\\0' y; exit 1;; esac\n"
	if err := os.WriteFile(n.Path("verifier"), []byte(verifier), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(n.Path("verifier"), filepath.Join(n.VerifierDir(), "verifier")); err != nil {
		t.Fatal(err)
	}
	reg.SetFault(func(q registry.Request) *registry.Fault {
		switch q.Repository {
		case "body":
			return &registry.Fault{Status: http.StatusForbidden, Body: `{"errors":[{"code":"DENIED","message":"` + huge + `"}]}`}
		case "redirected":
			return &registry.Fault{Status: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"http://127.0.0.1:1/" + huge}}}
		case "challenged":
			return &registry.Fault{Status: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {`Bearer realm="http://127.0.0.1:1/` + huge + `"`}}}
		case "digest":
			return &registry.Fault{Digest: "sha256:" + huge, Status: http.StatusOK, Header: http.Header{"Content-Type": {huge}, "Docker-Content-Digest": {huge}, "Content-Length": {"2"}}}
		}
		return nil
	})
	for _, ref := range []string{
		reg.Ref("many:v1"), reg.Ref("long:v1"), reg.Ref("verified:v1"), reg.Ref("body:v1"), reg.Ref("redirected:v1"), reg.Ref("challenged:v1"), reg.Ref("digest:v1"),
		reg.Ref(huge), huge + "@sha256:" + huge, strings.Repeat("→", 20_000),
	} {
		_, err := n.PullWith(ctx, ref, node.PullOptions{Auth: &cri.AuthConfig{Username: "alice", Password: testkit.AlicePassword}})
		name := ref[:min(len(ref), 30)]
		s := status.Convert(err)
		if err == nil || len(s.Message()) > most || !utf8.ValidString(s.Message()) {
			t.Errorf("%s: got an error of %d bytes, want valid UTF-8 of at most %d: %.300v", name, len(s.Message()), most, err)
		}
		if len(s.Details()) != 1 {
			t.Errorf("%s: got %d details, want 1: %.300v", name, len(s.Details()), err)
		}
	}
	if err := n.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(n.Logs(), "\n") {
		ours := strings.Contains(line, "PullImage failed") || strings.Contains(line, "fetch failed") || strings.Contains(line, "response received") || strings.Contains(line, "trying next host")
		if ours && len(line) > most+most/4 { // the line also has escapes, a time and a level
			t.Errorf("the log has a line of %d bytes: %.300s", len(line), line)
		}
	}
}

// peakMemory returns the peak resident memory of a process in bytes.
func peakMemory(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// TestHugeLabels checks that huge labels and annotations of a pod do not affect other pods and are not stored in
// containerd's metadata.
func TestHugeLabels(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Extra: testkit.ConsistencyRules})
	tag, _ := r.Push("workload/app:v1", images.Options{}, images.HostPlatform())
	huge := strings.Repeat("x", 64<<10)
	sandbox := &cri.PodSandboxConfig{
		Metadata:    &cri.PodSandboxMetadata{Name: "a", Namespace: "default", Uid: "a"},
		Labels:      map[string]string{"pod-template-hash": huge},
		Annotations: map[string]string{"io.imagepin.pull-behavior": huge, "io.imagepin.version-consistency": huge},
	}
	_, err := r.Images().PullImage(r.Ctx, &cri.PullImageRequest{
		Image: &cri.ImageSpec{Image: tag, Annotations: sandbox.Annotations}, SandboxConfig: sandbox,
	})
	if err == nil || !strings.Contains(err.Error(), "pin") {
		t.Errorf("got %.200v, want an error about the pin", err)
	}
	for scope := range r.Pins(tag) {
		if len(scope) > 1<<10 {
			t.Errorf("a pin has a scope of %d bytes", len(scope))
		}
	}
	r.MustPull(tag, "") // without the huge labels
}

// longNames returns references that are longer than any valid one, by what is long.
func longNames(host string) map[string]string {
	const size = 1 << 20
	return map[string]string{
		"path":    host + "/" + strings.Repeat("a/", size/2) + "app:v1",
		"tag":     host + "/app:" + strings.Repeat("v", size),
		"digest":  host + "/app@sha256:" + strings.Repeat("0", size),
		"host":    strings.Repeat("a.", size/2) + "example/app:v1",
		"ID":      strings.Repeat("0", size),
		"invalid": strings.Repeat("→", size/3),
	}
}

// TestLongNamesOfImages calls the CRI and the control service with names of images that have a megabyte. Parsing one would take
// seconds. Calls that need the image fail with InvalidReference, the others answer as for an image that is absent, and nothing is
// written or requested.
func TestLongNamesOfImages(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{})
	tag, digest := r.Push("app:v1", images.Options{}, images.HostPlatform())
	id := r.MustPull(tag, "")
	pod := r.MustPod("")
	r.Reg.Reset()
	r.Collect()
	before := r.MustState()
	for what, name := range longNames(r.Reg.Host()) {
		image := &cri.ImageSpec{Image: name}
		create := func(c *cri.ContainerConfig) func() error {
			return func() error {
				c.Metadata = &cri.ContainerMetadata{Name: "long"}
				_, err := r.Runtime().CreateContainer(r.Ctx, &cri.CreateContainerRequest{PodSandboxId: pod.ID, Config: c, SandboxConfig: pod.Config})
				return err
			}
		}
		for call, run := range map[string]func() error{
			"PullImage": func() error {
				_, err := r.PullWith(r.Ctx, name, node.PullOptions{Pod: pod, Auth: testkit.AsAlice()})
				return err
			},
			"CreateContainer":                      create(&cri.ContainerConfig{Image: image}),
			"CreateContainer with the pod's name":  create(&cri.ContainerConfig{Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: name}}),
			"CreateContainer with an image volume": create(&cri.ContainerConfig{Image: &cri.ImageSpec{Image: id, UserSpecifiedImage: tag}, Mounts: []*cri.Mount{{ContainerPath: "/v", Image: image}}}),
			"Inspect": func() error {
				_, err := r.Control().Inspect(r.Ctx, &api.InspectRequest{Ref: name})
				return err
			},
			"Resolve": func() error {
				_, err := r.Control().Resolve(r.Ctx, &api.ResolveRequest{Ref: name})
				return err
			},
			"Pull": func() error {
				stream, err := r.Control().Pull(r.Ctx, &api.PullRequest{Ref: name})
				if err == nil {
					_, err = stream.Recv()
				}
				return err
			},
			"SetPin": func() error {
				_, err := r.Control().SetPin(r.Ctx, &api.SetPinRequest{Ref: name, Digest: testkit.DigestIn(digest)})
				return err
			},
			"RemovePin": func() error {
				_, err := r.Control().RemovePin(r.Ctx, &api.RemovePinRequest{Ref: name})
				return err
			},
			"UndoPin": func() error {
				_, err := r.Control().UndoPin(r.Ctx, &api.UndoPinRequest{Ref: name})
				return err
			},
			"Refresh": func() error {
				_, err := r.Control().Refresh(r.Ctx, &api.RefreshRequest{Ref: name})
				return err
			},
			"RemoveImage of the control service": func() error {
				_, err := r.Control().RemoveImage(r.Ctx, &api.RemoveImageRequest{Ref: name})
				return err
			},
			"Diff": func() error {
				_, err := r.Control().Diff(r.Ctx, &api.DiffRequest{Ref: name})
				return err
			},
		} {
			s := status.Convert(run())
			if s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), "InvalidReference: ") || len(s.Message()) > 1<<10 {
				t.Errorf("%s, a long %s: got %s, %.1500q, want InvalidReference in at most 1 KiB", call, what, s.Code(), s.Message())
			}
		}
		for _, handler := range []string{"", node.DefaultHandler} {
			if img, err := r.ImageStatus(r.Ctx, name, handler); err != nil || img != nil {
				t.Errorf("ImageStatus for handler %q, a long %s: got %v, %.1000v, want no image", handler, what, img, err)
			}
			if err := r.RemoveImage(r.Ctx, name, handler); err != nil {
				t.Errorf("RemoveImage for handler %q, a long %s: %.1000v", handler, what, err)
			}
		}
		list, err := r.Images().ListImages(r.Ctx, &cri.ListImagesRequest{Filter: &cri.ImageFilter{Image: image}})
		if err != nil || len(list.GetImages()) > 0 {
			t.Errorf("ListImages, a long %s: got %.1000v, %.1000v", what, list, err)
		}
	}
	r.WantNoRequests("long names")
	r.WantState("after calls with long names", before)
	r.WantLine(pod, node.ContainerOptions{Image: id, UserImage: tag}, testkit.Line(images.Options{}, images.HostPlatform()))
}
