package claims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/pkg/imagepin"
	client "github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
)

const (
	tag     = "registry.example.com/shop/web:v7"
	digestA = "sha256:0a4d33c8e917b2c7d1f0a4d33c8e917b2c7d1f0a4d33c8e917b2c7d1f0a4d33c"
	digestB = "sha256:72b781a8c6436434171a0f1e3d1b918be781a73b76cc073549cb947eef0128bb"
	// The nodes. They are users, and no kubelet runs.
	n1 = "n1"
	n2 = "n2"
)

// manifests are the files of contrib/kubernetes/cluster in the order of its kustomization.
var manifests = []string{"crd.yaml", "admission-policy.yaml", "flowschema.yaml", "rbac.yaml"}

// kube is the cluster of the tests that do not disturb the API server.
var kube *server

// server is an API server, and the clients of the nodes.
type server struct {
	*cluster.Cluster
	dir     string
	clients map[string]*client.Client
}

func TestMain(m *testing.M) {
	code, err := withServer(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withServer(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if kube, err = start(ctx, cluster.Options{Authorize: true}); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, kube.close()) }()
	if err := kube.install(ctx, manifests...); err != nil {
		return 1, err
	}
	if err := kube.StartControllers("replicaset-controller", "statefulset-controller", "daemonset-controller", "job-controller"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// start starts an API server without the manifests.
func start(ctx context.Context, opts cluster.Options) (_ *server, err error) {
	s := &server{clients: map[string]*client.Client{}}
	if s.dir, err = os.MkdirTemp("", "imagepin-claims-"); err != nil {
		return nil, err
	}
	if s.Cluster, err = cluster.Start(ctx, opts); err != nil {
		return nil, errors.Join(err, os.RemoveAll(s.dir))
	}
	for _, name := range []string{n1, n2} {
		if err = s.addNode(ctx, name); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (s *server) addNode(ctx context.Context, name string) error {
	if err := s.Do(ctx, "POST", "/api/v1/nodes", &core.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil); err != nil {
		return err
	}
	if _, err := s.WriteNodeKubeconfig(s.kubeconfig(name), name, ""); err != nil {
		return err
	}
	c, err := client.New(client.Config{Kubeconfig: s.kubeconfig(name), Timeout: time.Minute})
	s.clients[name] = c
	return err
}

func (s *server) kubeconfig(node string) string { return filepath.Join(s.dir, node, "kubeconfig") }

func (s *server) close() error {
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(append(errs, s.Close(), os.RemoveAll(s.dir))...)
}

// startServer starts an API server for one test, without the manifests.
func startServer(t *testing.T, opts cluster.Options) *server {
	t.Helper()
	opts.Authorize = true
	s, err := start(testkit.Context(t), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// install creates the objects of manifests and waits until the API server serves ImagePins.
func (s *server) install(ctx context.Context, names ...string) error {
	if err := s.InstallFiles(ctx, files(names...)...); err != nil {
		return err
	}
	return s.AwaitImagePins(ctx)
}

// files returns the paths of manifests.
func files(names ...string) []string {
	var paths []string
	for _, name := range names {
		paths = append(paths, filepath.Join("../../../contrib/kubernetes/cluster", name))
	}
	return paths
}

// namespaces is the number of namespaces that tests have created.
var namespaces atomic.Int32

// rig is a namespace for one test.
type rig struct {
	*server
	t   *testing.T
	ctx context.Context
	ns  string
}

func newRig(t *testing.T, s *server) *rig {
	t.Helper()
	r := &rig{server: s, t: t, ctx: testkit.Context(t), ns: fmt.Sprintf("test-%d", namespaces.Add(1))}
	r.must("POST", "/api/v1/namespaces", &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: r.ns}}, nil)
	return r
}

// must sends a request with all permissions.
func (r *rig) must(method, path string, in, out any) {
	r.t.Helper()
	if err := r.Do(r.ctx, method, path, in, out); err != nil {
		r.t.Fatal(err)
	}
}

// path returns the path of a resource in the namespace, for example of apps/v1/replicasets.
func (r *rig) path(resource string, name ...string) string {
	group, resource := resource[:strings.LastIndex(resource, "/")], resource[strings.LastIndex(resource, "/")+1:]
	root := "/apis/"
	if group == "v1" {
		root = "/api/"
	}
	return root + strings.Join(append([]string{group, "namespaces", r.ns, resource}, name...), "/")
}

// addPod creates a pod that is bound to a node.
func (r *rig) addPod(name, node string, edit ...func(*core.Pod)) client.Pod {
	r.t.Helper()
	p := &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: podSpec(node)}
	for _, e := range edit {
		e(p)
	}
	r.must("POST", r.path("v1/pods"), p, p)
	return client.Pod{Namespace: r.ns, Name: name, UID: p.UID}
}

// podSpec is a pod on a node that never runs.
func podSpec(node string) core.PodSpec {
	return core.PodSpec{
		NodeName: node, Containers: []core.Container{{Name: "c", Image: tag}},
		Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}}, // the nodes are not ready
	}
}

// controlledBy returns an edit that makes an object the controller of a pod.
func controlledBy(apiVersion, kind, name string, uid types.UID) func(*core.Pod) {
	return func(p *core.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes}}
	}
}

// podOn waits for a pod that can run on a node, and binds it to the node as the scheduler would.
func (r *rig) podOn(node string) client.Pod {
	r.t.Helper()
	var found client.Pod
	testkit.EventuallyIn(r.t, time.Minute, "there is a pod for node "+node, func(ctx context.Context) (bool, error) {
		var list core.PodList
		if err := r.Do(ctx, "GET", r.path("v1/pods"), nil, &list); err != nil {
			return false, err
		}
		for _, p := range list.Items {
			if p.Spec.NodeName == "" && mayRun(p, node) {
				found = client.Pod{Namespace: r.ns, Name: p.Name, UID: p.UID}
				return true, nil
			}
		}
		return false, nil
	})
	binding := &core.Binding{ObjectMeta: metav1.ObjectMeta{Name: found.Name}, Target: core.ObjectReference{Kind: "Node", Name: node}}
	r.must("POST", r.path("v1/pods", found.Name, "binding"), binding, nil)
	return found
}

// mayRun reports whether a pod may run on a node. The DaemonSet controller creates each pod for one node.
func mayRun(p core.Pod, node string) bool {
	if p.Spec.Affinity == nil {
		return true
	}
	terms := p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.Contains(terms[0].MatchFields[0].Values, node)
}

// ownerOf returns the owner of a pod of a node. The Node authorizer learns by a watch that a pod is bound to the node, so
// it waits for that.
func (r *rig) ownerOf(node string, pod client.Pod) *client.Owner {
	r.t.Helper()
	var owner *client.Owner
	testkit.EventuallyIn(r.t, time.Minute, "the node can read the pod", func(ctx context.Context) (bool, error) {
		var err error
		owner, err = r.clients[node].OwnerOf(ctx, pod)
		if errdefs.IsPermissionDenied(err) {
			return false, nil
		}
		return err == nil, err
	})
	return owner
}

// claim claims as a node and fails the test if there is an error.
func (r *rig) claim(node string, owner *client.Owner, pod client.Pod, d digest.Digest) (client.Pin, bool) {
	r.t.Helper()
	pin, created, err := r.clients[node].Claim(r.ctx, *owner, pod, tag, d)
	if err != nil {
		r.t.Fatal(err)
	}
	return pin, created
}

// newClient returns a client for one test.
func newClient(t *testing.T, config client.Config) *client.Client {
	t.Helper()
	c, err := client.New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// want checks the reason, the class and a part of the text of an error.
func want(t *testing.T, err error, reason imagepin.Reason, class error, text string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason || e.Class != class || !strings.Contains(err.Error(), text) {
		t.Errorf("got error %v, want %s (%v) with %q", err, reason, class, text)
		return
	}
	t.Logf("%v", err)
}
