package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/docs/transcript"
	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const arm64 = "linux/arm64"

// exampleRef is the image of contrib/kubernetes/pods.yaml.
const exampleRef = "registry.example.com/team/app:v1"

// exampleNamespace has the pods of docs/kubernetes.md, apart from those of other tests.
const exampleNamespace = "examples"

// worker is the node of docs/kubernetes.md, with a shell that runs kubectl and imagepin.
type worker struct {
	*kubeletRig
	transcript.Shell
}

func newWorker(t *testing.T) *worker {
	t.Helper()
	ns := &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: exampleNamespace}}
	if err := kube.Do(testkit.Context(t), "POST", "/api/v1/namespaces", ns, nil); err != nil {
		t.Fatal(err)
	}
	// After kubelet has stopped.
	deleteAfter(t, "/api/v1/namespaces/"+exampleNamespace+"/pods?gracePeriodSeconds=0")
	contrib, err := filepath.Abs(examples)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{kubeletRig: startRig(t, "worker", node.Options{
		Handlers: []node.Handler{{Name: "kata", Snapshotter: "native"}, {Name: "arm64", Platform: arm64}},
	}, func(*node.Node) (cluster.KubeletOptions, error) {
		return cluster.KubeletOptions{ConfigDir: filepath.Join(contrib, "kubelet.conf.d")}, nil
	})}
	if err := w.WriteHosts("registry.example.com", node.Mirror("https://registry.example.com", w.Reg.URL())); err != nil {
		t.Fatal(err)
	}
	w.pushExample()
	w.writeExamples(t.TempDir())
	status, err := w.k.Status(w.Ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range status.Addresses {
		if a.Type == core.NodeInternalIP {
			w.Replace("192.0.2.2", a.Address)
		}
	}
	bin, err := filepath.Abs(node.BinDir())
	if err != nil {
		t.Fatal(err)
	}
	w.Env = append(os.Environ(), "PATH="+bin+":"+filepath.Dir(cluster.Bin("kubectl"))+":/usr/bin:/bin", "HOME="+w.Dir,
		"KUBECONFIG="+filepath.Join(w.Dir, "kubeconfig"), "CONTAINERD_ADDRESS="+w.Address())
	for _, class := range []string{"kata", "arm64"} {
		deleteAfter(t, "/apis/node.k8s.io/v1/runtimeclasses/"+class)
	}
	return w
}

// writeExamples makes a directory the one of the commands, with contrib/kubernetes and a kubeconfig file. The pods have
// the node's network and name the node.
func (w *worker) writeExamples(dir string) {
	w.T.Helper()
	w.Dir = dir
	contrib := filepath.Join(dir, "contrib/kubernetes")
	if err := os.CopyFS(contrib, os.DirFS(examples)); err != nil {
		w.T.Fatal(err)
	}
	var manifest bytes.Buffer
	for _, p := range documents[core.Pod](w.T, "pods.yaml") {
		p.Spec.NodeName, p.Spec.HostNetwork, p.Spec.AutomountServiceAccountToken = w.k.Name, true, new(bool)
		if err := json.NewEncoder(&manifest).Encode(p); err != nil {
			w.T.Fatal(err)
		}
		manifest.WriteString("---\n")
	}
	if err := os.WriteFile(filepath.Join(contrib, "pods.yaml"), manifest.Bytes(), 0o600); err != nil {
		w.T.Fatal(err)
	}
	if err := kube.WriteKubeconfig(filepath.Join(dir, "kubeconfig"), exampleNamespace); err != nil {
		w.T.Fatal(err)
	}
}

// pushExample pushes the image of the pods. Its digests and sizes depend on the version of Go that compiles the program
// in it, so they are replaced by those that the page shows. With each version, the image for arm64 is the smaller one.
func (w *worker) pushExample() {
	w.T.Helper()
	must := func(err error) {
		w.T.Helper()
		if err != nil {
			w.T.Fatal(err)
		}
	}
	native, err := images.App(w.Ctx, images.Options{Random: []images.Random{{Size: 64 << 10}}})
	must(err)
	other, err := images.App(w.Ctx, images.Options{Platform: arm64})
	must(err)
	idx, err := images.Index(images.OCI, images.Entry{Image: native}, images.Entry{Image: other})
	must(err)
	d, err := w.Reg.Push(strings.TrimPrefix(exampleRef, "registry.example.com/"), idx)
	must(err)
	w.replaceDigest("48bdf76bbede", d)
	indexSize, err := idx.Size()
	must(err)
	for _, i := range []struct {
		v1.Image
		manifest, config string
		size, plus       int64
	}{
		{native, "652e27480aa7", "a2cdac9ae15fb", 949032, indexSize}, // the index counts for the platform of the node
		{other, "0b4c3d113172", "9833f082b3f90", 880359, 0},
	} {
		digest, err := i.Digest()
		must(err)
		w.replaceDigest(i.manifest, digest)
		m, err := i.Manifest()
		must(err)
		w.replaceDigest(i.config, m.Config.Digest)
		size, err := i.Size() // of the manifest
		must(err)
		size += m.Config.Size + i.plus
		for _, l := range m.Layers {
			size += l.Size
		}
		w.Replace(strconv.FormatInt(i.size, 10), strconv.FormatInt(size, 10))
		w.Replace(kibibytes(i.size), kibibytes(size))
	}
}

func kibibytes(n int64) string { return fmt.Sprintf("%.1fKiB", float64(n)/1024) }

// replaceDigest replaces a digest that the page shows, also in shorter forms.
func (w *worker) replaceDigest(shown string, real v1.Hash) {
	for n := len(shown); n >= 12; n-- {
		w.Replace(shown[:n], real.Hex[:n])
	}
}

// wantVersions fails the test unless the page names the versions of the node.
func (w *worker) wantVersions(path string) {
	w.T.Helper()
	page, err := os.ReadFile(path)
	if err != nil {
		w.T.Fatal(err)
	}
	status, err := w.k.Status(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	containerd := strings.TrimPrefix(strings.TrimSuffix(status.NodeInfo.ContainerRuntimeVersion, "+imagepin"), "containerd://")
	want := fmt.Sprintf("kubectl %s, containerd %s", strings.TrimPrefix(status.NodeInfo.KubeletVersion, "v"), strings.TrimPrefix(containerd, "v"))
	if !strings.Contains(string(page), want) {
		w.T.Errorf("%s does not have the versions %q", path, want)
	}
}

func (w *worker) command(text string) (string, error) { return w.Run(w.Ctx, text) }

func (w *worker) step(name string, args []string) (string, error) {
	switch name {
	case "await":
		return "", w.await(args[0])
	case "images":
		return w.images(args[0])
	}
	return "", fmt.Errorf("there is no step %q", name)
}

// await waits until the API server has what the next command shows: all pods are ready, all events that images were
// pulled, or the images in the node's status.
func (w *worker) await(what string) error {
	w.T.Helper()
	conditions := map[string]func(context.Context) (int, error){
		"pods": func(ctx context.Context) (n int, _ error) {
			for _, p := range w.listPods(ctx) {
				if slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
					return c.Type == core.PodReady && c.Status == core.ConditionTrue
				}) {
					n++
				}
			}
			return n, nil
		},
		"events": func(ctx context.Context) (int, error) {
			var list core.EventList
			err := kube.Do(ctx, "GET", "/api/v1/namespaces/"+exampleNamespace+"/events?fieldSelector=reason=Pulled", nil, &list)
			return len(list.Items), err
		},
		"status": func(ctx context.Context) (n int, _ error) {
			status, err := w.k.Status(ctx)
			for _, i := range status.Images {
				if slices.Contains(i.Names, exampleRef) {
					n++
				}
			}
			return n, err
		},
	}
	count, ok := conditions[what]
	if !ok {
		return fmt.Errorf("nothing awaits %q", what)
	}
	want := 3
	if what == "status" {
		want = 2
	}
	testkit.EventuallyIn(w.T, time.Minute, fmt.Sprintf("there are %d %s", want, what), func(ctx context.Context) (bool, error) {
		n, err := count(ctx)
		return n == want, err
	})
	return nil
}

// listPods returns the pods of the page.
func (w *worker) listPods(ctx context.Context) []core.Pod {
	w.T.Helper()
	var list core.PodList
	if err := kube.Do(ctx, "GET", "/api/v1/namespaces/"+exampleNamespace+"/pods", nil, &list); err != nil {
		w.T.Fatal(err)
	}
	return list.Items
}

// images returns what ListImages returns of a repository, in the columns of `crictl images`. The order of the rows is
// that of the digests that the page shows.
func (w *worker) images(repository string) (string, error) {
	listed, err := w.ListImages(w.Ctx)
	if err != nil {
		return "", err
	}
	var rows []string
	for _, i := range listed {
		for _, ref := range i.RepoTags {
			if repo, tag, _ := strings.Cut(ref, ":"); repo == repository {
				rows = append(rows, w.There(fmt.Sprintf("%s\t%s\t%.13s\t%d", repo, tag, strings.TrimPrefix(i.Id, "sha256:"), i.Size)))
			}
		}
	}
	slices.Sort(rows)
	var out strings.Builder
	t := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "IMAGE\tTAG\tIMAGE ID\tSIZE\n%s\n", strings.Join(rows, "\n"))
	err = t.Flush()
	return out.String(), err
}
