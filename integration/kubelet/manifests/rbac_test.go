package manifests

import (
	"context"
	"slices"
	"testing"

	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

const newDigest = "sha256:1b5e44d9f0a28c3d7e2f1b5e44d9f0a28c3d7e2f1b5e44d9f0a28c3d7e2f1b5e"

// requests are the requests for ImagePins by verb. Each gets the path of the resource and of an ImagePin that exists.
var requests = []struct {
	verb string
	send func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error
}{
	{"get", func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error {
		return c.Do(ctx, "GET", resource+"/"+pin.Name, nil, nil)
	}},
	{"list", func(ctx context.Context, c *cluster.Client, resource string, _ *v1alpha1.ImagePin) error {
		return c.Do(ctx, "GET", resource, nil, nil)
	}},
	{"watch", func(ctx context.Context, c *cluster.Client, resource string, _ *v1alpha1.ImagePin) error {
		resp, err := c.Send(ctx, "GET", resource+"?watch=true", nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}},
	{"update", func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error {
		moved := pin.DeepCopy()
		moved.Spec.Digest = newDigest
		return c.Do(ctx, "PUT", resource+"/"+pin.Name, moved, nil)
	}},
	{"patch", func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error {
		return c.Do(ctx, "PATCH", resource+"/"+pin.Name, map[string]any{"spec": map[string]any{"digest": digest}}, nil)
	}},
	{"delete", func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error {
		return c.Do(ctx, "DELETE", resource+"/"+pin.Name, nil, nil)
	}},
	{"deletecollection", func(ctx context.Context, c *cluster.Client, resource string, _ *v1alpha1.ImagePin) error {
		return c.Do(ctx, "DELETE", resource, nil, nil)
	}},
	{"create", func(ctx context.Context, c *cluster.Client, resource string, pin *v1alpha1.ImagePin) error {
		created := pin.DeepCopy()
		created.ResourceVersion, created.UID = "", ""
		return c.Do(ctx, "POST", resource, created, nil)
	}},
}

// TestVerbs sends a request of each verb as a node and as people with the roles of Kubernetes.
func TestVerbs(t *testing.T) {
	t.Parallel()
	waitAggregated(t)
	all := []string{"get", "list", "watch", "update", "patch", "delete", "deletecollection", "create"}
	for _, c := range []struct {
		user    string
		allowed []string
	}{
		{n1, []string{"get", "create"}},
		{"view", []string{"get", "list", "watch"}},
		{"edit", all},
		{"admin", all},
		{"", nil},
	} {
		t.Run("user "+c.user, func(t *testing.T) {
			t.Parallel()
			ctx := testkit.Context(t)
			ns := api.namespace(t)
			user := api.nodes[c.user]
			if user == nil {
				user = api.person(t, ns, c.user)
			}
			api.runPods(t, ns, pod("virt-launcher-vm1-x2x4z", n1))
			// The garbage collector ignores an owner of a kind that is not served.
			pin := claim(custom, "vm1", "virt-launcher-vm1-x2x4z")
			api.must(t, "POST", pinPath(ns, ""), pin, pin)
			for _, r := range requests {
				err := r.send(ctx, user, pinPath(ns, ""), pin)
				if r.verb == "create" && apierrors.IsAlreadyExists(err) {
					err = nil // It exists if the user was not allowed to delete it.
				}
				if allowed := slices.Contains(c.allowed, r.verb); allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
					t.Errorf("%s: got error %v, want allowed: %t", r.verb, err, allowed)
				}
			}
		})
	}
}

// person returns a user with a cluster role of Kubernetes in a namespace, or without permissions if role is empty.
func (s *server) person(t *testing.T, ns, role string) *cluster.Client {
	t.Helper()
	name := role + "@" + ns
	u, err := s.User(name)
	if err != nil {
		t.Fatal(err)
	}
	if role == "" {
		return u
	}
	binding := &rbac.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbac.Subject{{APIGroup: rbac.GroupName, Kind: rbac.UserKind, Name: name}},
	}
	s.must(t, "POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/"+ns+"/rolebindings", binding, nil)
	// RBAC learns of the binding by a watch, and the controller adds the rules to the role.
	eventually(t, name+" can read pods", func(ctx context.Context) error {
		return u.Do(ctx, "GET", podPath(ns, ""), nil, nil)
	})
	return u
}

// waitAggregated waits until the controller has added the rules of the manifests to the roles of Kubernetes, and the API
// server uses them.
func waitAggregated(t *testing.T) {
	t.Helper()
	ns := api.namespace(t)
	for role, verb := range map[string]string{"view": "list", "edit": "deletecollection", "admin": "deletecollection"} {
		method := map[string]string{"list": "GET", "deletecollection": "DELETE"}
		const roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles?watch=true&fieldSelector=metadata.name="
		await(t, api, roles+role, "the role "+role+" has rules for ImagePins", func(_ watch.EventType, r *rbac.ClusterRole) bool {
			return slices.ContainsFunc(r.Rules, func(r rbac.PolicyRule) bool {
				return slices.Contains(r.Resources, v1alpha1.Resource) && slices.Contains(r.Verbs, verb)
			})
		})
		u := api.person(t, ns, role)
		eventually(t, "the API server uses the role "+role, func(ctx context.Context) error {
			return u.Do(ctx, method[verb], pinPath(ns, ""), nil, nil)
		})
	}
}

// TestNodesReadOnlyTheirOwn reads objects as a node that the manifests do not permit it to read.
func TestNodesReadOnlyTheirOwn(t *testing.T) {
	t.Parallel()
	ctx := testkit.Context(t)
	ns := api.namespace(t)
	api.runPods(t, ns, pod("mine", n1), pod("foreign", n2))
	for path, allowed := range map[string]bool{
		podPath(ns, "mine"):    true,
		podPath(ns, "foreign"): false,
		podPath(ns, "absent"):  false,
		podPath(ns, ""):        false,
		"/apis/apps/v1/namespaces/" + ns + "/controllerrevisions": false,
		"/apis/apps/v1/namespaces/" + ns + "/replicasets/web":     false,
	} {
		err := api.nodes[n1].Do(ctx, "GET", path, nil, nil)
		if allowed && err != nil || !allowed && !apierrors.IsForbidden(err) {
			t.Errorf("%s: got error %v, want allowed: %t", path, err, allowed)
		}
	}
	absent := "/apis/apps/v1/namespaces/" + ns + "/controllerrevisions/absent"
	if err := api.nodes[n1].Do(ctx, "GET", absent, nil, nil); !apierrors.IsNotFound(err) {
		t.Errorf("%s: got error %v, want that it is not found", absent, err)
	}
}
