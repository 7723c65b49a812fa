package kubelet

import (
	"errors"
	"io"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/images"
)

// examples is the directory of the example manifests.
const examples = "../../contrib/kubernetes/"

// TestExamples runs the commands of docs/kubernetes.md, with the runtime classes, pods and kubelet drop-in of
// contrib/kubernetes, but without a scheduler and a network plugin. The test's registry is a mirror of
// registry.example.com.
func TestExamples(t *testing.T) {
	t.Parallel()
	page, err := transcript.Read("../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	sessions := page.Sessions()
	if len(sessions) != 1 || sessions[0][0].Text != "worker" {
		t.Fatalf("%s: got %d sessions, want one of the node worker", page.Path, len(sessions))
	}
	w := newWorker(t)
	check := page.Check()
	if err := w.Play(sessions[0], w.command, w.step, check.Output); err != nil {
		t.Fatal(err)
	}
	if err := check.Save(); err != nil {
		t.Fatal(err)
	}
	w.wantVersions(page.Path)

	for _, p := range w.listPods(w.Ctx) {
		want := images.Options{}
		if class := p.Spec.RuntimeClassName; class != nil && *class == "arm64" {
			want.Platform = arm64
		}
		w.wantLogOf(&p, "app", 0, want.Line(0))
	}
	named := map[string]bool{}
	for _, c := range w.k.Proxy.Calls("PullImage") {
		named[c.Request.(*cri.PullImageRequest).GetImage().GetRuntimeHandler()] = true
	}
	if !named["kata"] || !named["arm64"] {
		t.Errorf("got pulls for handlers %v, want kata and arm64", named)
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
