package builders

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const foreignPlatform = "linux/s390x"

// side is a node with a pod.
type side struct {
	*testkit.Rig
	pod *node.Pod
}

// TestBuilders pulls what builders push, with imagepin and with stock. At the end, all is removed.
func TestBuilders(t *testing.T) {
	t.Parallel()
	ours := testkit.NewRig(t, node.Options{})
	stock := *ours
	stock.Node = testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: ours.Options().SandboxImage})
	w := newWorkshop(t, ours.Reg)
	w.build()
	ours.MustRemovePod(ours.MustPod("")) // the sandbox image stays
	before := ours.MustState()
	both := []*side{{ours, ours.MustPod("")}, {&stock, stock.MustPod("")}}
	for _, f := range forms {
		t.Run(f.name, func(t *testing.T) { testForm(t, w.in(t), both, f) })
	}
	testkit.Push(t, ours.Reg, "app:v1", testkit.App(t, images.Options{}))
	app := ours.Reg.Ref("app:v1")
	for _, s := range both {
		s.MustPull(app, "")
	}
	for _, a := range artifacts {
		t.Run(a.name, func(t *testing.T) { testArtifact(t, w.in(t), both, app, a) })
	}
	ours.MustRemovePod(both[0].pod)
	ours.MustRemove(app, "")
	ours.ForgetFailedPulls()
	ours.WantState("without the images", before)
}

// testForm pulls and runs an image. Both nodes list the digest that the builder and the registry state, fetch the same, and the
// container prints which platform's image it runs.
func testForm(t *testing.T, w *workshop, both []*side, f form) {
	built := f.push(w, f)
	ref := w.ref(f)
	target, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	opts := []remote.Option{remote.WithContext(testkit.Context(t)), remote.WithTransport(&http.Transport{DisableKeepAlives: true})}
	stated, err := remote.Head(target, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if stated.Digest.String() != built || stated.MediaType != f.kind {
		t.Fatalf("the registry has %s, %s, but the builder pushed %s, and the test wants %s", stated.Digest, stated.MediaType, built, f.kind)
	}
	img, err := remote.Image(target, append(opts, remote.WithPlatform(hostPlatform(t)))...)
	if err != nil {
		t.Fatal(err)
	}
	if got := compressions(t, img); !slices.Equal(got, []string{f.layers}) {
		t.Fatalf("the image has layers %q, want %q", got, f.layers)
	}
	repo, _ := strings.CutSuffix(ref, ":v1")
	ids, requests := make([]string, len(both)), make([][]string, len(both))
	for i, s := range both {
		r := s.In(t)
		r.Reg.Reset()
		ids[i] = r.MustPull(ref, "")
		for _, q := range r.Reg.Requests() {
			requests[i] = append(requests[i], q.Method+" "+q.Path)
		}
		slices.Sort(requests[i])
		img := r.MustStatus(ref, "")
		if !slices.Equal(img.GetRepoTags(), []string{ref}) || !slices.Equal(img.GetRepoDigests(), []string{repo + "@" + built}) {
			t.Errorf("%s lists %q and %q, want %s and its digest %s", r.Options().Binary, img.GetRepoTags(), img.GetRepoDigests(), ref, built)
		}
		r.WantRunIn(s.pod, ids[i], images.Options{}.Line(0))
	}
	if ids[0] != ids[1] {
		t.Errorf("image ID %s, in stock %s", ids[0], ids[1])
	}
	if f.ggcr {
		wantRequests(t, requests, f.kind.IsIndex(), img)
	}
	wantListed(t, both[0].In(t), ref, built)
	for _, s := range both {
		s.In(t).MustRemove(ref, "") // the next image has the same files, and is unpacked too
	}
}

// wantRequests fails the test unless both nodes have resolved the tag, and fetched the index, if there is one, and the image for their
// platform, but nothing else.
func wantRequests(t *testing.T, requests [][]string, isIndex bool, img v1.Image) {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	want := 1 + 1 + 1 + len(manifest.Layers) // HEAD, manifest, configuration, layers
	if isIndex {
		want++
	}
	if len(requests[0]) != want || !slices.Equal(requests[0], requests[1]) {
		t.Errorf("imagepin sent %q, and stock %q, want %d requests", requests[0], requests[1], want)
	}
}

func hostPlatform(t *testing.T) v1.Platform {
	t.Helper()
	platform, err := images.ParsePlatform(images.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	return *platform
}

// compressions returns how the layers are compressed, each once.
func compressions(t *testing.T, img v1.Image) (found []string) {
	t.Helper()
	manifest, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range manifest.Layers {
		c := map[types.MediaType]string{
			types.OCILayer: "gzip", types.OCILayerZStd: "zstd", types.OCIUncompressedLayer: "uncompressed", types.DockerLayer: "gzip",
		}[l.MediaType]
		switch {
		case c == "":
			t.Fatalf("a layer of type %s", l.MediaType)
		case l.Annotations["io.github.containers.zstd-chunked.manifest-checksum"] != "":
			c += ":chunked"
		case l.Annotations[estargz.TOCJSONDigestAnnotation] != "":
			c = "estargz"
		}
		found = append(found, c)
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// wantListed fails the test unless the command lists the reference with the digest, for the platform of the node.
func wantListed(t *testing.T, r *testkit.Rig, ref, digest string) {
	t.Helper()
	var listed struct {
		Keys []struct {
			Ref    string
			Target struct{ Platform string }
			Root   struct{ Digest string }
		}
	}
	out := r.WantOperator(0, []string{"images", "--ref", ref, "-o", "json"})
	if err := json.Unmarshal([]byte(out), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed.Keys) != 1 || listed.Keys[0].Root.Digest != digest || listed.Keys[0].Target.Platform != images.HostPlatform() {
		t.Errorf("imagepin images lists %+v, want %s on %s", listed.Keys, digest, images.HostPlatform())
	}
}
