package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

// timeout is how long tests wait for a controller.
const timeout = time.Minute

// server is an API server with two nodes. Nodes are objects, and no kubelet runs.
type server struct{ *cluster.Cluster }

// prepare runs commands without ImagePins, installs what "kubectl imagepin install" prints and starts the controllers.
func (s *server) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	without = make(map[string]result)
	for _, command := range []string{"get", "drift", "explain pod/p", "rm web.0123456789"} {
		r, err := kubectl.run(ctx, strings.Fields(command)...)
		if err != nil {
			return err
		}
		without[command] = r
	}
	for _, name := range []string{"n1", "n2"} {
		if err := s.Do(ctx, "POST", "/api/v1/nodes", &core.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil); err != nil {
			return err
		}
	}
	if err := s.install(ctx); err != nil {
		return err
	}
	return s.StartControllers(controllers...)
}

func (s *server) install(ctx context.Context) error {
	manifests, err := kubectl.run(ctx, "install")
	if err != nil {
		return err
	}
	if err := s.Install(ctx, strings.NewReader(manifests.out)); err != nil {
		return err
	}
	return s.AwaitImagePins(ctx)
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

// pins returns the ImagePins of a namespace by name.
func (s *server) pins(t *testing.T, ns string) map[string]v1alpha1.ImagePin {
	t.Helper()
	var list v1alpha1.ImagePinList
	s.must(t, "GET", pinPath(ns, ""), nil, &list)
	pins := make(map[string]v1alpha1.ImagePin)
	for _, p := range list.Items {
		pins[p.Name] = p
	}
	return pins
}

// claim creates the ImagePin of an image as a node would, for a pod.
func (s *server) claim(t *testing.T, p *core.Pod, image, digest string) *v1alpha1.ImagePin {
	t.Helper()
	pin := nodePin(p, image, digest)
	s.must(t, "POST", pinPath(p.Namespace, ""), pin, pin)
	return pin
}

// nodePin returns the ImagePin of an image that a node creates for a pod.
func nodePin(p *core.Pod, image, digest string) *v1alpha1.ImagePin {
	owner := ownerOf(p)
	return &v1alpha1.ImagePin{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ImagePin"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            v1alpha1.Name(owner, image),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}},
		},
		Spec: v1alpha1.ImagePinSpec{Image: image, Digest: digest, Owner: owner, By: &v1alpha1.Claimer{Node: cmp.Or(p.Spec.NodeName, "n1"), Pod: p.Name, PodUID: p.UID}},
	}
}

// allow permits a user something in a namespace, by a Role or a ClusterRole.
func (s *server) allow(t *testing.T, ns, user, kind, role string) {
	t.Helper()
	s.must(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings", &rbac.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: kind, Name: role},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: "User", Name: user}},
	}, nil)
}

func pinPath(ns, name string) string {
	return strings.TrimSuffix("/apis/"+v1alpha1.GroupVersion.String()+"/namespaces/"+ns+"/imagepins/"+name, "/")
}
