package manifests

import (
	"context"
	"testing"

	apps "k8s.io/api/apps/v1"
	coordination "k8s.io/api/coordination/v1"
	flowcontrol "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/testkit"
)

const flowControl = "/apis/flowcontrol.apiserver.k8s.io/v1/"

// TestFlowSchema reads from the API server's responses which FlowSchema and priority level requests have.
func TestFlowSchema(t *testing.T) {
	t.Parallel()
	ns := api.namespace(t)
	api.runPods(t, ns, pod("web-7d4b9c-x2x4z", n1))
	// The garbage collector ignores an owner of a kind that is not served.
	pin := claim(custom, "vm1", "web-7d4b9c-x2x4z")
	api.must(t, "POST", pinPath(ns, ""), pin, nil)
	revisions := "/apis/apps/v1/namespaces/" + ns + "/controllerrevisions"
	api.must(t, "POST", revisions, &apps.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: "agent-5f6b"}, Data: runtime.RawExtension{Raw: []byte("{}")}, Revision: 1}, nil)
	node := api.nodes[n1]
	person, err := api.User("somebody", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: n1}}
	// The API server creates the namespace of the leases after it has started.
	testkit.EventuallyIn(t, timeout, "the node's lease exists", func(ctx context.Context) (bool, error) {
		err := node.Do(ctx, "POST", leases, lease, nil)
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
	api.must(t, "GET", leases+"/"+n1, nil, lease)

	// The API server uses a new FlowSchema soon after it is created.
	testkit.EventuallyIn(t, timeout, "claims have the FlowSchema of the manifests", func(context.Context) (bool, error) {
		return classify(t, node, "POST", pinPath(ns, "")+dryRun, web()) == levelOf(t, "imagepin"), nil
	})
	for _, c := range []struct {
		what, method, path string
		client             *cluster.Client
		in                 any
		schema             string
	}{
		{"a node claims", "POST", pinPath(ns, "") + dryRun, node, web(), "imagepin"},
		{"a node reads an ImagePin", "GET", pinPath(ns, pin.Name), node, nil, "imagepin"},
		{"a node reads a ControllerRevision", "GET", revisions + "/agent-5f6b", node, nil, "imagepin"},
		{"a node renews its lease", "PUT", leases + "/" + n1 + dryRun, node, lease, "system-node-high"},
		{"a node reads itself", "GET", "/api/v1/nodes/" + n1, node, nil, "system-node-high"},
		{"a node reads its pod", "GET", podPath(ns, "web-7d4b9c-x2x4z"), node, nil, "system-nodes"},
		{"a person reads an ImagePin", "GET", pinPath(ns, pin.Name), person, nil, "exempt"},
	} {
		if got, want := classify(t, c.client, c.method, c.path, c.in), levelOf(t, c.schema); got != want {
			t.Errorf("%s: got FlowSchema and priority level %v, want %v of %s", c.what, got, want, c.schema)
		}
	}
}

// level is the UIDs of a FlowSchema and of its priority level.
type level struct{ schema, priority string }

// classify sends a request and returns the level in the headers of the response.
func classify(t *testing.T, c *cluster.Client, method, path string, in any) level {
	t.Helper()
	resp, err := c.Send(testkit.Context(t), method, path, in)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	h := resp.Header
	return level{h.Get(flowcontrol.ResponseHeaderMatchedFlowSchemaUID), h.Get(flowcontrol.ResponseHeaderMatchedPriorityLevelConfigurationUID)}
}

// levelOf returns the level of requests with a FlowSchema.
func levelOf(t *testing.T, name string) level {
	t.Helper()
	var schema flowcontrol.FlowSchema
	api.must(t, "GET", flowControl+"flowschemas/"+name, nil, &schema)
	var priority flowcontrol.PriorityLevelConfiguration
	api.must(t, "GET", flowControl+"prioritylevelconfigurations/"+schema.Spec.PriorityLevelConfiguration.Name, nil, &priority)
	return level{string(schema.UID), string(priority.UID)}
}
