package kubelet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"

	core "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

// examples is the directory of the example manifests.
const examples = "../../contrib/kubernetes/"

// TestExamples runs the runtime classes, pods and kubelet drop-in of contrib/kubernetes, but without a scheduler and a
// network plugin. The test's registry is a mirror of registry.example.com.
func TestExamples(t *testing.T) {
	t.Parallel()
	const arm64 = "linux/arm64"
	dropIns, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, "worker", node.Options{
		Handlers: []node.Handler{{Name: "kata", Snapshotter: "native"}, {Name: "arm64", Platform: arm64}},
	}, cluster.KubeletOptions{ConfigDir: dropIns + "/" + examples + "kubelet.conf.d"})
	if err := r.WriteHosts("registry.example.com", node.Mirror("https://registry.example.com", r.Reg.URL())); err != nil {
		t.Fatal(err)
	}
	opts := images.Options{}
	idx, err := images.AppIndex(r.Ctx, opts, images.HostPlatform(), arm64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Reg.Push("team/app:v1", idx); err != nil {
		t.Fatal(err)
	}
	for _, rc := range documents[nodev1.RuntimeClass](t, "runtimeclasses.yaml") {
		const runtimeClasses = "/apis/node.k8s.io/v1/runtimeclasses"
		if err := kube.Do(r.Ctx, "POST", runtimeClasses, rc, nil); err != nil {
			t.Fatal(err)
		}
		deleteAfter(t, runtimeClasses+"/"+rc.Name)
	}
	pods := documents[core.Pod](t, "pods.yaml")
	for _, p := range pods {
		no := false
		p.Spec.NodeName, p.Spec.HostNetwork, p.Spec.AutomountServiceAccountToken = r.k.Name, true, &no
		r.create(p)
	}
	for _, p := range pods {
		want := opts
		if class := p.Spec.RuntimeClassName; class != nil && *class == "arm64" {
			want.Platform = arm64
		}
		now := r.waitPod(p, "runs", running)
		r.wantLogOf(now, "app", 0, want.Line(0))
	}
	r.wantListed("registry.example.com/team/app", "v1", 2)
	named := map[string]bool{}
	for _, c := range r.k.Proxy.Calls("PullImage") {
		named[c.Request.(*cri.PullImageRequest).GetImage().GetRuntimeHandler()] = true
	}
	if !named["kata"] || !named["arm64"] {
		t.Errorf("got pulls for handlers %v, want kata and arm64", named)
	}
}

// wantListed fails the test unless ListImages returns n images of a tag with different IDs. It logs them with the
// columns of `crictl images`.
func (r *kubeletRig) wantListed(repo, tag string, n int) {
	r.T.Helper()
	images, err := r.ListImages(r.Ctx)
	if err != nil {
		r.T.Fatal(err)
	}
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tTAG\tIMAGE ID\tSIZE")
	ids := map[string]bool{}
	for _, i := range images {
		if slices.Contains(i.RepoTags, repo+":"+tag) {
			ids[i.Id] = true
			fmt.Fprintf(w, "%s\t%s\t%.13s\t%d\n", repo, tag, strings.TrimPrefix(i.Id, "sha256:"), i.Size)
		}
	}
	if err := w.Flush(); err != nil {
		r.T.Fatal(err)
	}
	r.T.Logf("ListImages:\n%s", out.String())
	if len(ids) != n {
		r.T.Errorf("%s:%s: got %d images, want %d", repo, tag, len(ids), n)
	}
}

// documents reads the documents of a manifest file.
func documents[T any](t *testing.T, file string) []*T {
	t.Helper()
	f, err := os.Open(examples + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []*T
	for d := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		v := new(T)
		if err := d.Decode(v); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, v)
	}
}
