package kubelet

import (
	"errors"
	"io"
	"os"
	"testing"

	core "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
)

// examples is where the manifests for users are.
const examples = "../../contrib/kubernetes/"

// TestExamples runs contrib/kubernetes as it stands: classes, pods and kubelet's drop-in. What the pods do without here is a
// scheduler and a network plugin; registry.example.com is a mirror of the test's registry.
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
	if err := r.WriteHosts("registry.example.com", node.Mirror("https://registry.example.com", r.reg.URL())); err != nil {
		t.Fatal(err)
	}
	opts := images.Options{}
	idx, err := images.AppIndex(r.ctx, opts, images.HostPlatform(), arm64)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.reg.Push("team/app:v1", idx); err != nil {
		t.Fatal(err)
	}
	for _, rc := range documents[nodev1.RuntimeClass](t, "runtimeclasses.yaml") {
		if err := kube.Do(r.ctx, "POST", "/apis/node.k8s.io/v1/runtimeclasses", rc, nil); err != nil {
			t.Fatal(err)
		}
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
	named := map[string]bool{}
	for _, c := range r.k.Proxy.Calls("PullImage") {
		named[c.Request.(*cri.PullImageRequest).GetImage().GetRuntimeHandler()] = true
	}
	if !named["kata"] || !named["arm64"] {
		t.Errorf("with the drop-in, pulls were for handlers %v", named)
	}
}

// documents reads a manifest of several.
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
