package fleet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

// patience is how long tests wait for the cluster.
const patience = time.Minute

// rig is a node with a registry of its own, and the namespace of its pods, which has the name of the node.
type rig struct {
	*testkit.Rig
	name    string
	kubelet *cluster.Kubelet
	options cluster.KubeletOptions
}

// newRig pushes the sandbox image to a registry, and prepares a node that does not run yet.
func newRig(t *testing.T, name string, opts node.Options) *rig {
	t.Helper()
	r := &rig{Rig: &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}, name: name}
	opts.SandboxImage = testkit.PushPause(t, r.Reg)
	opts.LogLevel = "info"
	// kubelet requires a runc with seccomp.
	opts.Env = append(opts.Env, "PATH="+filepath.Dir(cluster.Bin("runc"))+":"+node.BinDir()+":"+os.Getenv("PATH"))
	r.Node = testkit.NewNode(t, opts)
	if err := r.Prepare(nil); err != nil {
		t.Fatal(err)
	}
	r.options = cluster.KubeletOptions{Kubeconfig: r.Path("kubelet-api", "kubeconfig"), Labels: "fleet=" + name}
	if _, err := kube.WriteNodeKubeconfig(r.options.Kubeconfig, name, ""); err != nil {
		t.Fatal(err)
	}
	r.do("POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}}, nil)
	return r
}

// startNode starts containerd and imagepin.
func (r *rig) startNode() {
	r.T.Helper()
	if err := r.Start(r.Ctx); err != nil {
		r.T.Fatal(err)
	}
}

// startKubelet starts kubelet, which connects to the node at once. config is added to its configuration.
func (r *rig) startKubelet(config map[string]any) {
	r.T.Helper()
	r.options.Config = maps.Clone(config)
	if r.kubelet != nil {
		if err := r.kubelet.Start(r.Ctx, r.options); err != nil {
			r.T.Fatal(err)
		}
		return
	}
	var err error
	if r.kubelet, err = kube.StartKubelet(r.Ctx, r.name, r.Node, r.options); err != nil {
		r.T.Fatal(err)
	}
	r.T.Cleanup(func() {
		if r.T.Failed() {
			r.T.Logf("end of kubelet's log:\n%s", r.kubelet.LogTail(30))
		}
		if err := r.kubelet.Close(); err != nil {
			r.T.Errorf("close kubelet: %v", err)
		}
	})
}

// stopKubelet stops kubelet. Its pods keep running.
func (r *rig) stopKubelet() {
	r.T.Helper()
	if err := r.kubelet.Stop(); err != nil {
		r.T.Fatal(err)
	}
}

// do sends a request to the API server with all permissions.
func (r *rig) do(method, path string, in, out any) {
	r.T.Helper()
	if err := kube.Do(r.Ctx, method, path, in, out); err != nil {
		r.T.Fatal(err)
	}
}

// push pushes an image with the platforms of all runtime classes. It returns its digest.
func (r *rig) push(ref, version string) string {
	r.T.Helper()
	return r.pushIndex(ref, testkit.AppIndex(r.T, images.Options{Version: version}, images.HostPlatform(), foreignPlatform))
}

func (r *rig) pushIndex(ref string, index v1.ImageIndex) string {
	r.T.Helper()
	return testkit.Push(r.T, r.Reg, ref, index).String()
}

// manifest writes a file of testdata to the node's directory and returns its path. REGISTRY in it means the host of the
// registry, and NODE the name of the node.
func (r *rig) manifest(name string) string {
	r.T.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		r.T.Fatal(err)
	}
	path := r.Path(name)
	if err := os.WriteFile(path, []byte(strings.NewReplacer("REGISTRY", r.Reg.Host(), "NODE", r.name).Replace(string(text))), 0o644); err != nil {
		r.T.Fatal(err)
	}
	return path
}

// lock locks the images in a manifest, and the sandbox image that containerd's configuration sets.
func (r *rig) lock(name, manifest string) (path string) {
	r.T.Helper()
	path = r.Path(name)
	r.imagepin(0, []string{"lock", "-f", manifest, "--containerd-config", r.Config(), "-o", path})
	return path
}

// bundle writes a bundle of a lock.
func (r *rig) bundle(name, lock string, args ...string) (path string) {
	r.T.Helper()
	path = r.Path(name)
	r.imagepin(0, append([]string{"bundle", lock, "-o", path}, args...))
	return path
}

// imagepin runs the command and fails the test unless it ends with a code and prints all words.
func (r *rig) imagepin(code int, args []string, words ...string) string {
	r.T.Helper()
	out, got := r.Operator(args...)
	if got != code {
		r.T.Fatalf("imagepin %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			r.T.Errorf("imagepin %s: no %q in:\n%s", strings.Join(args, " "), w, out)
		}
	}
	return out
}

// kubectl runs kubectl in the namespace of the rig.
func (r *rig) kubectl(args ...string) {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, cluster.Bin("kubectl"), append([]string{"--kubeconfig", kube.Kubeconfig(), "-n", r.name}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+r.Root())
	if out, err := cmd.CombinedOutput(); err != nil {
		r.T.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// pods waits until a condition holds for each of the n pods of a workload, and returns them. Pods that are being deleted
// count.
func (r *rig) pods(app string, n int, what string, condition func(core.Pod) bool) []core.Pod {
	r.T.Helper()
	ctx, cancel := context.WithTimeout(r.Ctx, patience)
	defer cancel()
	all, err := cluster.Await(ctx, kube.Client, "/api/v1/namespaces/"+r.name+"/pods", "app="+app, func(pods []core.Pod) bool {
		for _, p := range pods {
			if !condition(p) {
				return false
			}
		}
		return len(pods) == n
	})
	if err != nil {
		r.T.Fatalf("waiting until %d pods of %s %s: %v", n, app, what, err)
	}
	return all
}

// running waits until a workload has n pods, whose containers all run the digest of an image, and none else.
func (r *rig) running(app string, n int, digest string) []core.Pod {
	r.T.Helper()
	return r.pods(app, n, "run "+digest, func(p core.Pod) bool { return isRunning(p) && runs(p, digest) })
}

func isRunning(p core.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == core.PodRunning
}

// runs reports whether all containers of a pod have started with the digest of an image.
func runs(p core.Pod, digest string) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil || !strings.HasSuffix(c.ImageID, "@"+digest) {
			return false
		}
	}
	return len(p.Status.ContainerStatuses) > 0
}

// waiting returns the messages of the containers of a pod. It is empty unless all wait for their images.
func waiting(p core.Pod) string {
	var messages []string
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting == nil || !strings.Contains(c.State.Waiting.Reason, "Image") {
			return ""
		}
		messages = append(messages, c.State.Waiting.Message)
	}
	return strings.Join(messages, "\n")
}

// wantLine fails the test unless a container of a pod printed a line.
func (r *rig) wantLine(p core.Pod, container, line string) {
	r.T.Helper()
	var got string
	testkit.EventuallyIn(r.T, patience, fmt.Sprintf("container %s of pod %s prints something", container, p.Name), func(context.Context) (_ bool, err error) {
		got, err = r.kubelet.Log(&p, container, 0)
		return got != "", err
	})
	if got != line {
		r.T.Errorf("container %s of pod %s: got line %q, want %q", container, p.Name, got, line)
	}
}
