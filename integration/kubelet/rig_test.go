package kubelet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
)

const (
	// second is the runtime class on a second snapshotter, other the one with a second platform.
	second = "second"
	other  = "foreign"
	// lazyClass is the runtime class on a lazily pulling snapshotter, on nodes that have one.
	lazyClass = "lazy"
	// foreign is a platform that is not this machine's.
	foreign = "linux/s390x"
)

// classes are the runtime classes of the tests. The empty one is for pods without a runtime class.
var classes = []string{"", second, other}

// kube is the cluster of all tests.
var kube *cluster.Cluster

func TestMain(m *testing.M) {
	os.Exit(cluster.InNamespace(func() int {
		code, err := withCluster(m)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return code
	}))
}

func withCluster(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if kube, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return 1, err
	}
	defer func() {
		if cerr := kube.Close(); err == nil {
			err = cerr
		}
	}()
	for _, class := range append(classes[1:], lazyClass) {
		rc := &nodev1.RuntimeClass{ObjectMeta: meta.ObjectMeta{Name: class}, Handler: class}
		if err := kube.Do(ctx, "POST", "/apis/node.k8s.io/v1/runtimeclasses", rc, nil); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// kubeletRig is a registry, a containerd with imagepin, and a kubelet that uses it.
type kubeletRig struct {
	*testkit.Rig
	k *cluster.Kubelet
	*shared
}

// shared is the state that the subtests of a rig share.
type shared struct {
	mu   sync.Mutex
	pods map[string]*core.Pod // created pods by name
	kept []trioPod            // pods that still run

	revisions *revisions // that testVersions has run
}

// newRig starts a node with the three classes. It discards unpacked layers, as large managed clusters do.
func newRig(t *testing.T, name string, opts node.Options, kubelet cluster.KubeletOptions) *kubeletRig {
	t.Helper()
	return newRigWith(t, name, opts, func(*node.Node) (cluster.KubeletOptions, error) { return kubelet, nil })
}

// newRigWith is newRig with a function that runs before kubelet starts and returns its options.
func newRigWith(t *testing.T, name string, opts node.Options, before func(*node.Node) (cluster.KubeletOptions, error)) *kubeletRig {
	t.Helper()
	opts.Handlers = append(opts.Handlers, node.Handler{Name: second, Snapshotter: "native"}, node.Handler{Name: other, Platform: foreign})
	return startRig(t, name, opts, before)
}

// startRig is newRigWith without the handlers of the three classes.
func startRig(t *testing.T, name string, opts node.Options, before func(*node.Node) (cluster.KubeletOptions, error)) *kubeletRig {
	t.Helper()
	r := &kubeletRig{Rig: &testkit.Rig{T: t, Ctx: testkit.Context(t), Reg: testkit.Registry(t)}, shared: &shared{pods: map[string]*core.Pod{}}}
	opts.SandboxImage = testkit.PushPause(t, r.Reg)
	opts.DiscardUnpackedLayers = true
	opts.LogLevel = "info"
	opts.StatsCollectPeriod = 1
	// kubelet requires a runc with seccomp.
	opts.Env = append(opts.Env, "PATH="+filepath.Dir(cluster.Bin("runc"))+":"+node.BinDir()+":"+os.Getenv("PATH"))
	r.Node = testkit.Node(t, opts)
	kubelet, err := before(r.Node)
	if err != nil {
		t.Fatal(err)
	}
	if r.k, err = kube.StartKubelet(r.Ctx, name, r.Node, kubelet); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of kubelet's log:\n%s", r.k.LogTail(30))
		}
		if err := r.k.Close(); err != nil {
			t.Errorf("close kubelet: %v", err)
		}
	})
	return r
}

// in returns the same rig for a subtest.
func (r *kubeletRig) in(t *testing.T) *kubeletRig {
	sub := *r
	sub.Rig = r.In(t)
	return &sub
}

// push pushes an index of App images for both platforms to "repo:tag". It returns the full reference by tag and by
// digest.
func (r *kubeletRig) push(ref string, opts images.Options) (tag, digest string) {
	r.T.Helper()
	d := testkit.Push(r.T, r.Reg, ref, testkit.AppIndex(r.T, opts, images.HostPlatform(), foreign))
	repo, _, _ := strings.Cut(ref, ":")
	return r.Reg.Ref(ref), r.Reg.Ref(repo + "@" + d.String())
}

// pod returns a pod with one container, named "c".
func (r *kubeletRig) pod(name, class, image string, policy core.PullPolicy) *core.Pod {
	no := false
	p := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: r.k.Name + "-" + name, Namespace: "default"},
		Spec: core.PodSpec{
			NodeName: r.k.Name, HostNetwork: true, AutomountServiceAccountToken: &no,
			Containers: []core.Container{{Name: "c", Image: image, ImagePullPolicy: policy}},
		},
	}
	if class != "" {
		p.Spec.RuntimeClassName = &class
	}
	return p
}

func (r *kubeletRig) create(p *core.Pod) {
	r.T.Helper()
	r.mu.Lock()
	r.pods[p.Name] = p
	r.mu.Unlock()
	if err := kube.CreatePod(r.Ctx, p); err != nil {
		r.T.Fatal(err)
	}
}

// waitPod waits until a condition holds for all containers of a pod.
func (r *kubeletRig) waitPod(p *core.Pod, what string, condition func(*core.Pod, core.ContainerStatus) bool) *core.Pod {
	r.T.Helper()
	got, err := kube.WaitPod(r.Ctx, p.Name, func(p *core.Pod) (bool, error) {
		for _, c := range p.Status.ContainerStatuses {
			if !condition(p, c) {
				return false, nil
			}
		}
		return len(p.Status.ContainerStatuses) == len(p.Spec.Containers), nil
	})
	if err != nil {
		r.T.Fatalf("waiting until the pod %s: %v", what, err)
	}
	return got
}

func running(_ *core.Pod, c core.ContainerStatus) bool { return c.State.Running != nil }

// wantLine waits until a pod runs and fails the test unless its container printed the line.
func (r *kubeletRig) wantLine(p *core.Pod, line string) *core.Pod {
	r.T.Helper()
	now := r.waitPod(p, "runs", running)
	r.wantLog(now, 0, line)
	return now
}

// wantLog fails the test unless the container printed the line at its nth start, counted from 0.
func (r *kubeletRig) wantLog(p *core.Pod, nth int, line string) {
	r.T.Helper()
	r.wantLogOf(p, "c", nth, line)
}

// wantLogOf is wantLog for a container with another name.
func (r *kubeletRig) wantLogOf(p *core.Pod, container string, nth int, line string) {
	r.T.Helper()
	var got string
	testkit.EventuallyIn(r.T, time.Minute, fmt.Sprintf("container %s of pod %s prints something at start %d", container, p.Name, nth), func(context.Context) (_ bool, err error) {
		got, err = r.k.Log(p, container, nth)
		return got != "", err
	})
	if got != line {
		r.T.Errorf("container %s of pod %s: got line %q, want %q", container, p.Name, got, line)
	}
}

// delete deletes a pod. It does not wait until the pod has terminated.
func (r *kubeletRig) delete(p *core.Pod) {
	r.T.Helper()
	if err := kube.DeletePod(r.Ctx, p.Name); err != nil {
		r.T.Fatal(err)
	}
}

// line returns the line that a container of a class prints.
func line(class string, opts images.Options, uid int) string {
	opts.Platform = platformOf(class)
	return opts.Line(uid)
}

// platformOf returns the platform of a class.
func platformOf(class string) string {
	if class == other {
		return foreign
	}
	return images.HostPlatform()
}

func title(class string) string {
	if class == "" {
		return "default"
	}
	return class
}

// handler returns the handler of a class, as image calls name it.
func handler(class string) string {
	if class == "" {
		return node.DefaultHandler
	}
	return class
}

// secret creates a pull secret.
func (r *kubeletRig) secret(name, user, password string) {
	r.T.Helper()
	auth := base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
	config, err := json.Marshal(map[string]any{"auths": map[string]any{r.Reg.Host(): map[string]string{"auth": auth}}})
	if err != nil {
		r.T.Fatal(err)
	}
	s := &core.Secret{
		ObjectMeta: meta.ObjectMeta{Name: name}, Type: core.SecretTypeDockerConfigJson,
		Data: map[string][]byte{core.DockerConfigJsonKey: config},
	}
	const secrets = "/api/v1/namespaces/default/secrets"
	if err := kube.Do(r.Ctx, "POST", secrets, s, nil); err != nil {
		r.T.Fatal(err)
	}
	deleteAfter(r.T, secrets+"/"+name)
}

// deleteAfter deletes an object from the API server after the test.
func deleteAfter(t *testing.T, path string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := kube.Do(ctx, "DELETE", path, nil, nil); err != nil {
			t.Error(err)
		}
	})
}

// imagepin runs the imagepin command on the node and decodes the JSON that it prints into out, unless out is nil.
func (r *kubeletRig) imagepin(out any, args ...string) {
	r.T.Helper()
	cmd := exec.CommandContext(r.Ctx, filepath.Join(node.BinDir(), "imagepin"), append([]string{"--address", r.Address(), "-o", "json"}, args...)...)
	b, err := cmd.Output()
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		r.T.Fatalf("imagepin %s: %v\n%s", strings.Join(args, " "), err, b)
	}
}

// stop stops the containers of a pod through the CRI. kubelet then restarts them.
func (r *kubeletRig) stop(p *core.Pod) {
	r.T.Helper()
	for _, c := range p.Status.ContainerStatuses {
		id := strings.TrimPrefix(c.ContainerID, "containerd://")
		if _, err := r.Runtime().StopContainer(r.Ctx, &cri.StopContainerRequest{ContainerId: id, Timeout: 5}); err != nil {
			r.T.Fatal(err)
		}
	}
}

// waitRestart waits until all containers of a pod have restarted. was is the pod before they were stopped.
func (r *kubeletRig) waitRestart(was *core.Pod) *core.Pod {
	r.T.Helper()
	before := map[string]core.ContainerStatus{}
	for _, c := range was.Status.ContainerStatuses {
		before[c.Name] = c
	}
	return r.waitPod(was, "restarts", func(_ *core.Pod, c core.ContainerStatus) bool {
		b := before[c.Name]
		return c.State.Running != nil && c.RestartCount == b.RestartCount+1 && c.ContainerID != b.ContainerID
	})
}
