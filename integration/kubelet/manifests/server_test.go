package manifests

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

// kustomization is the directory under test.
const kustomization = "../../../contrib/kubernetes/cluster"

// The nodes of each server.
const (
	n1 = "n1"
	n2 = "n2"
)

// server is an API server with the manifests and two nodes. Nodes are users, and no kubelet runs.
type server struct {
	*cluster.Cluster
	nodes map[string]*cluster.Client
}

// start starts an API server and installs the manifests.
func start(ctx context.Context, opts cluster.Options) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	s := &server{Cluster: c, nodes: map[string]*cluster.Client{}}
	if err := s.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (s *server) prepare(ctx context.Context) (err error) {
	for _, name := range []string{n1, n2} {
		if err := s.addNode(ctx, name); err != nil {
			return err
		}
		if s.nodes[name], err = s.User("system:node:"+name, "system:nodes"); err != nil {
			return err
		}
	}
	objects, err := build()
	if err != nil {
		return err
	}
	for _, o := range objects {
		// Strict fails for unknown and duplicate fields.
		if err := s.Do(ctx, "POST", collection(o)+"?fieldValidation=Strict", o, nil); err != nil {
			return err
		}
	}
	return s.waitForPolicy(ctx)
}

// addNode creates a node on which pods can run.
func (s *server) addNode(ctx context.Context, name string) error {
	if err := s.Do(ctx, "POST", "/api/v1/nodes", &core.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil); err != nil {
		return err
	}
	// The API server taints a new node until it is ready.
	ready := map[string]any{"spec": map[string]any{"taints": nil}}
	return s.Do(ctx, "PATCH", "/api/v1/nodes/"+name, ready, nil)
}

// waitForPolicy waits until the API server serves ImagePins and the policy refuses one of them.
func (s *server) waitForPolicy(ctx context.Context) error {
	refused := claim("apps/v1/ReplicaSet", "web", "web-x", func(p *v1alpha1.ImagePin) { p.Spec.By = nil })
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := s.create(ctx, n1, "default", refused, dryRun)
		if err != nil && strings.Contains(err.Error(), policy) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the policy refuses nothing: %w: %v", context.Cause(ctx), err)
		}
	}
}

// build returns the objects of the kustomization in the order in which kubectl creates them.
func build() ([]*unstructured.Unstructured, error) {
	opts := krusty.MakeDefaultOptions()
	opts.Reorder = krusty.ReorderOptionLegacy
	built, err := krusty.MakeKustomizer(opts).Run(filesys.MakeFsOnDisk(), kustomization)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for _, r := range built.Resources() {
		o, err := r.Map()
		if err != nil {
			return nil, err
		}
		objects = append(objects, &unstructured.Unstructured{Object: o})
	}
	return objects, nil
}

// collection returns the path of an object's resource. All objects of the manifests are of the cluster.
func collection(o *unstructured.Unstructured) string {
	plural, _ := meta.UnsafeGuessKindToResource(o.GroupVersionKind())
	return "/apis/" + o.GetAPIVersion() + "/" + plural.Resource
}

// namespaces is the number of namespaces that tests have created.
var namespaces atomic.Int32

// namespace creates a namespace for the test.
func (s *server) namespace(t *testing.T) string {
	t.Helper()
	ns := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("test-%d", namespaces.Add(1))}}
	s.must(t, "POST", "/api/v1/namespaces", ns, nil)
	return ns.Name
}

// must sends a request with all permissions and fails the test if it is refused.
func (s *server) must(t *testing.T, method, path string, in, out any) {
	t.Helper()
	if err := s.Do(testkit.Context(t), method, path, in, out); err != nil {
		t.Fatal(err)
	}
}

// pod returns a pod that is bound to a node, or to none.
func pod(name, node string, owners ...metav1.OwnerReference) *core.Pod {
	return &core.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners},
		Spec:       core.PodSpec{NodeName: node, Containers: containers},
	}
}

// containers are the containers of all pods. They never run.
var containers = []core.Container{{Name: "c", Image: image}}

// runPods creates pods in a namespace and waits until their nodes can read them.
func (s *server) runPods(t *testing.T, ns string, pods ...*core.Pod) {
	t.Helper()
	for _, p := range pods {
		s.must(t, "POST", podPath(ns, ""), p, nil)
	}
	for _, p := range pods {
		s.waitForNode(t, ns, p.Name, p.Spec.NodeName)
	}
}

// waitForNode waits until a node can read a pod that is bound to it. The Node authorizer learns of pods by a watch.
func (s *server) waitForNode(t *testing.T, ns, pod, node string) {
	t.Helper()
	eventually(t, fmt.Sprintf("node %s can read pod %s", node, pod), func(ctx context.Context) error {
		return s.nodes[node].Do(ctx, "GET", podPath(ns, pod), nil, nil)
	})
}

func podPath(ns, name string) string {
	return strings.TrimSuffix("/api/v1/namespaces/"+ns+"/pods/"+name, "/")
}
