package pull

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"google.golang.org/grpc/codes"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// checkFailedPull checks that a pull fails and leaves nothing, without a garbage collection. It returns the error.
func checkFailedPull(t *testing.T, n *node.Node, ref, handler string, want testkit.Failure) error {
	t.Helper()
	ctx := testkit.Context(t)
	before := testkit.State(t, n)
	_, err := n.Pull(ctx, ref, handler)
	want.Check(t, err, ref, testkit.TargetOf(handler))
	if img, serr := n.ImageStatus(ctx, ref, ""); serr != nil || img != nil {
		t.Errorf("ImageStatus after the failed pull: got %v, %v, want none", img, serr)
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("the failed pull left:\n%s", d)
	}
	return err
}

// checkNextPull checks that a pull succeeds, and that removing its image leaves nothing.
func checkNextPull(t *testing.T, n *node.Node, ref, handler string) {
	t.Helper()
	ctx := testkit.Context(t)
	before := testkit.State(t, n)
	id, err := n.Pull(ctx, ref, handler)
	if err != nil {
		t.Errorf("next pull: %v", err)
		return
	}
	if err := n.RemoveImage(ctx, id, ""); err != nil {
		t.Fatal(err)
	}
	testkit.NoLeaks(t, n, before)
}

// shortTimeout ends a pull after one second without progress.
const shortTimeout = `[plugins."io.containerd.cri.v1.images"]` + "\nimage_pull_progress_timeout = \"1s\"\n"

// TestRegistryFaults checks the error of a pull for each fault of a registry, while it resolves the tag and while it
// fetches the image. Nothing is left, and the next pull succeeds at once.
func TestRegistryFaults(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Extra: shortTimeout, Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	head, manifest, blob := registry.Is("HEAD", ""), registry.Is("GET", registry.Manifest), registry.Is("GET", registry.Blob)
	whole := func(q registry.Request) bool { return q.Kind == registry.Blob && q.Range == "" }
	never := make(chan struct{})
	defer close(never)
	other := testkit.App(t, images.Options{Version: "another image"})
	otherManifest, err := images.RawOf(other)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		fault registry.Fault
		when  func(registry.Request) bool
		want  testkit.Failure
	}{
		{"resolve 404", registry.Fault{Status: 404}, head, testkit.NoSuchImage},
		{"resolve 401", registry.Fault{Status: 401}, head, testkit.Unauthenticated},
		{"resolve 403", registry.Fault{Status: 403}, nil, testkit.Forbidden},
		{"resolve 400", registry.Fault{Status: 400}, head, testkit.Failure{Name: "CannotPullImageManifest", Code: codes.InvalidArgument}},
		{"resolve 429", registry.Fault{Status: 429, Header: http.Header{"Retry-After": {"1"}}}, head, testkit.ManifestUnavailable},
		{"resolve 500", registry.Fault{Status: 500}, head, testkit.ManifestUnavailable},
		{"resolve 503", registry.Fault{Status: 503}, head, testkit.ManifestUnavailable},
		{"resolve cut", registry.Fault{Abort: true}, head, testkit.ManifestUnavailable},
		{"resolve HTML", registry.Fault{HTML: true}, nil, testkit.Corrupt},
		{"resolve bad digest", registry.Fault{Digest: "sha256:short"}, head, testkit.Corrupt},
		{"resolve other digest", registry.Fault{Digest: "sha256:" + strings.Repeat("0", 64)}, head, testkit.ImageIncomplete},

		{"manifest 401", registry.Fault{Status: 401}, manifest, testkit.Unauthenticated},
		{"manifest 403", registry.Fault{Status: 403}, manifest, testkit.Forbidden},
		{"manifest 404", registry.Fault{Status: 404}, manifest, testkit.ImageIncomplete},
		{"manifest 429", registry.Fault{Status: 429}, manifest, testkit.ImageUnavailable},
		{"manifest 500", registry.Fault{Status: 500}, manifest, testkit.ImageUnavailable},
		{"manifest HTML", registry.Fault{HTML: true}, manifest, testkit.Corrupt},
		{"manifest of another image", registry.Fault{Status: 200, Body: string(otherManifest.Body), Header: http.Header{"Content-Type": {otherManifest.MediaType}}}, manifest, testkit.Corrupt},
		{"manifest with a flipped bit", registry.Fault{Corrupt: true, After: 30}, manifest, testkit.Corrupt},
		{"manifest hangs", registry.Fault{Hang: never}, manifest, testkit.Stalled},

		{"blob 401", registry.Fault{Status: 401}, blob, testkit.Unauthenticated},
		{"blob 403", registry.Fault{Status: 403}, blob, testkit.Forbidden},
		{"blob 404", registry.Fault{Status: 404}, blob, testkit.ImageIncomplete},
		{"blob 429", registry.Fault{Status: 429, Header: http.Header{"Retry-After": {"1"}}}, blob, testkit.ImageUnavailable},
		{"blob 500", registry.Fault{Status: 500}, blob, testkit.ImageUnavailable},
		{"blob HTML", registry.Fault{HTML: true}, blob, testkit.Corrupt},
		{"blob with a flipped bit", registry.Fault{Corrupt: true, After: 50}, blob, testkit.Corrupt},
		{"blob cut", registry.Fault{Abort: true}, blob, testkit.ImageUnavailable},
		{"blob truncated", registry.Fault{Truncate: true, After: 60}, whole, testkit.ImageUnavailable},
		{"blob hangs", registry.Fault{Hang: never}, blob, testkit.Stalled},
		{"blob hangs in the middle", registry.Fault{Hang: never, After: 60}, blob, testkit.Stalled},
	} {
		// Configurations and layers are fetched differently.
		for _, kind := range []string{"config", "layer"} {
			name, handler := test.name, ""
			switch {
			case !strings.HasPrefix(test.name, "blob") && kind == "layer":
				continue
			case strings.HasPrefix(test.name, "blob"):
				name = strings.Replace(test.name, "blob", kind, 1)
			}
			if kind == "layer" {
				handler = "native"
			}
			t.Run(name, func(t *testing.T) {
				repo := strings.ReplaceAll(strings.ToLower(name), " ", "-") + ":v1"
				img := testkit.App(t, images.Options{Version: test.name, SingleLayer: true})
				testkit.Push(t, reg, repo, img)
				config, err := img.ConfigName()
				if err != nil {
					t.Fatal(err)
				}
				reg.SetFault(func(q registry.Request) *registry.Fault {
					switch {
					case q.Kind == registry.Blob && (q.Reference == config.String()) != (kind == "config"):
						return nil
					case test.when == nil || test.when(q):
						return &test.fault
					case q.Range != "": // a resumed download
						return &registry.Fault{Abort: true}
					}
					return nil
				})
				err = checkFailedPull(t, n, reg.Ref(repo), handler, test.want)
				reg.SetFault(nil)
				if t.Failed() {
					t.Logf("%v\n%s", err, reg.Dump())
				}
				checkNextPull(t, n, reg.Ref(repo), handler)
				reg.Reset()
			})
		}
	}
	t.Run("down", func(t *testing.T) {
		testkit.Push(t, reg, "down:v1", testkit.App(t, images.Options{}))
		reg.Down()
		checkFailedPull(t, n, reg.Ref("down:v1"), "", testkit.ManifestUnavailable)
		if err := reg.Up(); err != nil {
			t.Fatal(err)
		}
		checkNextPull(t, n, reg.Ref("down:v1"), "")
	})
}

// TestRegistryThatNeverAnswers waits for manifest_pull_timeout with a pull and an apply. Its minimum is 30 seconds. The node keeps its
// lock, and the next pull and apply succeed. Meanwhile, pull_timeout ends a pull whose registry does not send the blobs, and one that
// waits for it.
func TestRegistryThatNeverAnswers(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{NoPods: true, Handlers: testkit.OtherTargets, Extra: `[plugins."io.containerd.imagepin.v1.images"]` + "\nmanifest_pull_timeout = \"30s\"\npull_timeout = \"31s\"\n"})
	testkit.Push(t, r.Reg, "app:v1", testkit.App(t, images.Options{}))
	locked := r.Reg.Ref("locked:v1")
	old := r.Version("locked:v1", "old")
	r.MustApply(r.WriteLock("old.yaml", map[string]string{locked: old}))
	next := r.WriteLock("next.yaml", map[string]string{locked: r.Version("locked:v1", "next")})
	never := make(chan struct{})
	defer close(never)
	testkit.Push(t, r.Reg, "slow:v1", testkit.App(t, images.Options{}))
	r.Reg.SetFault(func(q registry.Request) *registry.Fault {
		switch {
		case q.Repository != "slow":
			return &registry.Fault{Hang: never}
		case q.Kind == registry.Blob:
			return &registry.Fault{After: 10, Hang: never}
		}
		return nil
	})
	r.Collect()
	before := r.MustState()
	apply := testkit.Async(func() (string, error) {
		out, code := r.Operator("apply", next)
		return out, fmt.Errorf("exit code %d", code)
	})
	slow := make(map[string]func() (string, error))
	for _, handler := range []string{"", "native"} {
		slow[handler] = testkit.Async(func() (string, error) { return r.Pull(r.Ctx, r.Reg.Ref("slow:v1"), handler) })
	}
	_, err := r.Pull(r.Ctx, r.Reg.Ref("app:v1"), "")
	for handler, pull := range slow {
		_, err := pull()
		testkit.Failure{Name: "PullTimedOut", Code: codes.DeadlineExceeded}.Check(t, err, r.Reg.Ref("slow:v1"), testkit.TargetOf(handler))
	}
	timeout := testkit.Failure{Name: "ManifestPullTimeout", Code: codes.DeadlineExceeded, Prefix: "RegistryUnavailable"}
	timeout.Check(t, err, r.Reg.Ref("app:v1"), testkit.TargetOf(""))
	if out, err := apply(); err.Error() != "exit code 1" || !strings.Contains(out, timeout.Name) || !strings.Contains(out, r.Reg.Ref("locked@")) {
		t.Errorf("the apply: %v: %s", err, out)
	}
	testkit.NoLeaks(t, r.Node, before)
	if p := r.Pins(locked)["lock"]; p.GetRoot().GetDigest() != old {
		t.Errorf("the lock has %s, want %s", p.GetRoot().GetDigest(), old)
	}
	r.Reg.SetFault(nil)
	checkNextPull(t, r.Node, r.Reg.Ref("app:v1"), "")
	checkNextPull(t, r.Node, r.Reg.Ref("slow:v1"), "native")
	r.MustApply(next)
}

// TestMalformedImages checks that pulls of malformed images fail, and that the next pull, of a valid image, succeeds.
func TestMalformedImages(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	good := testkit.App(t, images.Options{})
	run := func(name string, want testkit.Failure, push func(t *testing.T, repo string)) {
		for _, handler := range []string{"", "native"} {
			t.Run(strings.TrimSpace(name+" "+handler), func(t *testing.T) {
				push(t, name)
				err := checkFailedPull(t, n, reg.Ref(name+":v1"), handler, want)
				testkit.Push(t, reg, name+":v1", good)
				checkNextPull(t, n, reg.Ref(name+":v1"), handler)
				if t.Failed() {
					t.Log(err)
				}
			})
		}
	}
	wants := map[string]testkit.Failure{
		"index-empty":            testkit.NoMatchingPlatform,
		"index-missing-manifest": testkit.ImageIncomplete,
		"manifest-missing-blobs": testkit.ImageIncomplete,
	}
	malformed := images.Malformed()
	for _, name := range slices.Sorted(maps.Keys(malformed)) {
		want, ok := wants[name]
		if !ok {
			want = testkit.Corrupt
		}
		run(name, want, func(_ *testing.T, repo string) { reg.PushRaw(repo+":v1", malformed[name]) })
	}

	layer := goodLayer(t)
	garbage := bytes.Repeat([]byte("this is no layer\n"), 100)
	for name, b := range map[string]brokenImage{
		"layer-not-gzip":       {layer: garbage},
		"layer-gzip-cut":       {layer: layer.packed[:len(layer.packed)/2]},
		"layer-gzip-bad-sum":   {layer: flipped(layer.packed, len(layer.packed)-6)},
		"layer-not-tar":        {layer: gzipped(t, garbage)},
		"layer-tar-cut":        {layer: gzipped(t, layer.plain[:700])},
		"layer-other-diff-id":  {layer: layer.packed, diffIDs: []string{"sha256:" + strings.Repeat("1", 64)}},
		"layer-not-zstd":       {layer: garbage, mediaType: "application/vnd.oci.image.layer.v1.tar+zstd"},
		"fewer-diff-ids":       {layer: layer.packed, diffIDs: []string{}},
		"more-diff-ids":        {layer: layer.packed, diffIDs: []string{layer.diffID, layer.diffID}},
		"config-not-json":      {layer: layer.packed, config: "{"},
		"manifest-wrong-sizes": {layer: layer.packed, sizeOff: 7},
	} {
		run(name, testkit.Corrupt, func(t *testing.T, repo string) { b.push(t, reg, repo) })
	}
}

type testLayer struct {
	plain, packed []byte
	diffID        string
}

// goodLayer returns a layer of one file that is larger than a tar block.
func goodLayer(t *testing.T) testLayer {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	content := bytes.Repeat([]byte("content "), 1000)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return testLayer{plain: buf.Bytes(), packed: gzipped(t, buf.Bytes()), diffID: digestOf(buf.Bytes())}
}

func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := gzip.NewWriter(&buf)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}

func digestOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// noType is the media type of a layer that has none.
const noType = "none"

// brokenImage is an image of one layer with correct digests and invalid content.
type brokenImage struct {
	layer      []byte
	above      [][]byte // more layers
	mediaType  string   // of the layers; empty means gzip, noType that they have none
	diffIDs    []string // nil means that of goodLayer
	config     string
	configType string
	sizeOff    int // added to the size of the layer
}

func (b brokenImage) push(t *testing.T, reg *registry.Registry, repo string) {
	t.Helper()
	switch b.mediaType {
	case "":
		b.mediaType = "application/vnd.oci.image.layer.v1.tar+gzip"
	case noType:
		b.mediaType = ""
	}
	if b.configType == "" {
		b.configType = "application/vnd.oci.image.config.v1+json"
	}
	if b.diffIDs == nil {
		b.diffIDs = []string{goodLayer(t).diffID}
	}
	encode := func(v any) []byte {
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	config := []byte(b.config)
	if b.config == "" {
		os, arch, _ := strings.Cut(images.HostPlatform(), "/")
		config = encode(map[string]any{"os": os, "architecture": arch, "rootfs": map[string]any{"type": "layers", "diff_ids": b.diffIDs}})
	}
	blob := func(mediaType string, content []byte, off int) map[string]any {
		return map[string]any{"mediaType": mediaType, "digest": reg.PushBlob(repo, content).String(), "size": len(content) + off}
	}
	const manifest = "application/vnd.oci.image.manifest.v1+json"
	layers := []any{blob(b.mediaType, b.layer, b.sizeOff)}
	for _, layer := range b.above {
		layers = append(layers, blob(b.mediaType, layer, 0))
	}
	reg.PushRaw(repo+":v1", images.Raw{MediaType: manifest, Body: encode(map[string]any{
		"schemaVersion": 2, "mediaType": manifest, "config": blob(b.configType, config, 0), "layers": layers,
	})})
}

// TestNoMatchingPlatform pulls images without the handler's platform. The error names those that they have.
func TestNoMatchingPlatform(t *testing.T) {
	t.Parallel()
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "foreign", Platform: "linux/s390x"}}})
	nested, err := images.Index(images.OCI, images.Entry{Image: testkit.App(t, images.Options{Platform: "linux/ppc64le"})})
	if err != nil {
		t.Fatal(err)
	}
	outer, err := images.Index(images.OCI, images.Entry{Index: nested}, images.Entry{Image: testkit.App(t, images.Options{Platform: "linux/riscv64"})},
		images.Entry{Image: testkit.App(t, images.Options{Platform: "linux/arm/v7"}), NoPlatform: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		content remote.Taggable
		handler string
		offered []string
	}{
		{"index", testkit.AppIndex(t, images.Options{}, "linux/ppc64le", "windows(10.0.20348.2402)/amd64"), "", []string{"linux/ppc64le", "windows(10.0.20348.2402)/amd64"}},
		{"nested", outer, "", []string{"linux/ppc64le", "linux/riscv64", "linux/arm/v7"}},
		{"manifest", testkit.App(t, images.Options{}), "foreign", []string{images.HostPlatform()}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Push(t, reg, test.name+":v1", test.content)
			reg.Reset()
			err := checkFailedPull(t, n, reg.Ref(test.name+":v1"), test.handler, testkit.NoMatchingPlatform)
			for _, p := range test.offered {
				if err != nil && !strings.Contains(err.Error(), p) {
					t.Errorf("the error does not contain %s: %v", p, err)
				}
			}
			// The first layer of these images is larger than all other blobs together.
			if blobs := reg.Count(registry.Is("GET", registry.Blob), func(q registry.Request) bool { return q.Bytes > 10_000 }); blobs != 0 {
				t.Errorf("layers were fetched:\n%s", reg.Dump())
			}
			testkit.Push(t, reg, test.name+":v1", testkit.AppIndex(t, images.Options{}, images.HostPlatform(), "linux/s390x"))
			checkNextPull(t, n, reg.Ref(test.name+":v1"), test.handler)
		})
	}
}

// TestWrongRequests checks the errors for invalid references and an unknown handler.
func TestWrongRequests(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{Handlers: []node.Handler{{Name: "native", Snapshotter: "native"}}})
	before := testkit.State(t, n)
	for _, ref := range []string{"", " ", "App:v1", reg.Ref("app:v 1"), reg.Ref("app@sha256:short"), reg.Ref("app@md5:00"), "http://" + reg.Ref("app:v1"), strings.Repeat("0", 64)} {
		_, err := n.Pull(ctx, ref, "")
		testkit.Failure{Name: "InvalidReference", Code: codes.InvalidArgument}.Check(t, err, ref, "")
	}
	_, err := n.Pull(ctx, reg.Ref("app:v1"), "nobody")
	testkit.Failure{Name: "UnknownRuntimeHandler", Code: codes.InvalidArgument}.Check(t, err, "nobody", "")
	for _, known := range []string{"runc", "native"} {
		if err != nil && !strings.Contains(err.Error(), known) {
			t.Errorf("the error does not name handler %s: %v", known, err)
		}
	}
	if reg.Count() != 0 {
		t.Errorf("the registry got requests:\n%s", reg.Dump())
	}
	if d := node.Diff(before, testkit.State(t, n)); d != "" {
		t.Errorf("wrong requests changed the node's state:\n%s", d)
	}
}

// TestImageForms pulls and runs images of all formats, and pulls all forms of names.
func TestImageForms(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	reg := testkit.Registry(t)
	n := testkit.Node(t, node.Options{SandboxImage: testkit.PushPause(t, reg), Handlers: []node.Handler{{Name: "arm", Platform: "linux/arm64"}}})
	if err := n.WriteHosts("docker.io", node.Mirror("https://"+unreachableHost, reg.URL())); err != nil {
		t.Fatal(err)
	}
	app := func(o images.Options) images.Entry { return images.Entry{Image: testkit.App(t, o)} }
	index := func(format images.Format, entries ...images.Entry) v1.ImageIndex {
		idx, err := images.Index(format, entries...)
		if err != nil {
			t.Fatal(err)
		}
		return idx
	}
	attested := func(e images.Entry) images.Entry {
		a, err := images.Attestation(e.Image)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	withoutPlatform := func(e images.Entry) images.Entry { e.NoPlatform = true; return e }
	// An attestation with a platform is not an image either.
	withPlatform := func(e images.Entry) images.Entry {
		p, err := images.ParsePlatform(images.HostPlatform())
		if err != nil {
			t.Fatal(err)
		}
		e.Platform = p
		return e
	}
	host, arm := images.Options{}, images.Options{Platform: "linux/arm64"}
	with := func(o images.Options, f images.Format, c images.Compression) images.Options {
		o.Format, o.Compression = f, c
		return o
	}
	for _, test := range []struct {
		name     string
		content  remote.Taggable
		handlers []string
	}{
		{"oci-gzip", testkit.App(t, host), []string{""}},
		{"oci-zstd", testkit.App(t, with(host, images.OCI, images.Zstd)), []string{""}},
		{"oci-plain", testkit.App(t, with(host, images.OCI, images.Uncompressed)), []string{""}},
		{"docker-gzip", testkit.App(t, with(host, images.Docker, images.Gzip)), []string{""}},
		{"docker-index", index(images.Docker, app(with(arm, images.Docker, images.Gzip)), app(with(host, images.Docker, images.Gzip))), []string{"", "arm"}},
		{"oci-index", index(images.OCI, app(arm), app(host)), []string{"", "arm"}},
		{"attested", index(images.OCI, attested(app(host)), withPlatform(attested(app(host))), app(arm), app(host)), []string{"", "arm"}},
		{"nested", index(images.OCI, images.Entry{Index: index(images.OCI, app(arm))}, images.Entry{Index: index(images.OCI, app(host))}), []string{"", "arm"}},
		{"no-platforms", index(images.OCI, withoutPlatform(app(arm)), withoutPlatform(app(host))), []string{"", "arm"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			testkit.Push(t, reg, test.name+":v1", test.content)
			for _, handler := range test.handlers {
				id, err := n.Pull(ctx, reg.Ref(test.name+":v1"), handler)
				if err != nil {
					t.Fatalf("handler %q: %v\n%s", handler, err, reg.Dump())
				}
				want := host.Line(0)
				if handler == "arm" {
					want = arm.Line(0)
				}
				line, err := n.Run(ctx, handler, node.ContainerOptions{Image: id, UserImage: reg.Ref(test.name + ":v1")})
				if err != nil || line != want {
					t.Errorf("handler %q: got %q, want %q: %v", handler, line, want, err)
				}
			}
		})
	}

	t.Run("names", func(t *testing.T) {
		old := testkit.Push(t, reg, "library/app:v1", testkit.App(t, images.Options{Version: "old"}))
		testkit.Push(t, reg, "library/app:v1", testkit.App(t, images.Options{Version: "new"}))
		testkit.Push(t, reg, "library/app:latest", testkit.App(t, images.Options{Version: "latest"}))
		testkit.Push(t, reg, "team/app:v1", testkit.App(t, images.Options{Version: "team"}))
		for _, test := range []struct{ ref, listed, version string }{
			{"app:v1", "docker.io/library/app:v1", "new"},
			{"app", "docker.io/library/app:latest", "latest"},
			{"team/app:v1", "docker.io/team/app:v1", "team"},
			{"docker.io/app:v1", "docker.io/library/app:v1", "new"},
			{"app@" + old.String(), "docker.io/library/app@" + old.String(), "old"},
			// The digest is used, and the tag does not move to it.
			{"app:v1@" + old.String(), "docker.io/library/app@" + old.String(), "old"},
		} {
			id, err := n.Pull(ctx, test.ref, "")
			if err != nil {
				t.Fatal(err)
			}
			img, err := n.ImageStatus(ctx, test.ref, "")
			if err != nil {
				t.Fatal(err)
			}
			want, err := testkit.App(t, images.Options{Version: test.version}).ConfigName()
			if err != nil {
				t.Fatal(err)
			}
			if id != want.String() || img.GetId() != id {
				t.Errorf("%s: got ID %s from the pull and %s from ImageStatus, want that of version %s", test.ref, id, img.GetId(), test.version)
			}
			if names := append(img.GetRepoTags(), img.GetRepoDigests()...); !slices.Contains(names, test.listed) {
				t.Errorf("%s: got names %v, want %s among them", test.ref, names, test.listed)
			}
			if test.version == "old" && slices.Contains(img.GetRepoTags(), "docker.io/library/app:v1") {
				t.Errorf("%s: the tag is listed for another digest than its own", test.ref)
			}
		}
	})
}

// unreachableHost is an address where nothing listens.
const unreachableHost = "127.0.0.1:1"
