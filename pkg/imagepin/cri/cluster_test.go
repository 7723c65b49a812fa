package cri

import (
	"context"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// clusterPins has the pins of a cluster by the UID of the owner, which is that of its only pod.
type clusterPins struct {
	cluster.Claimer
	pins  map[string]digest.Digest
	err   error
	asked int
}

func (c *clusterPins) Owner(_ context.Context, pod policy.Pod) (*policy.Owner, error) {
	c.asked++
	return &policy.Owner{Kind: "ReplicaSet", Name: "web", UID: pod.UID}, c.err
}

func (c *clusterPins) KnownOwner(policy.Pod) (*policy.Owner, bool) { return nil, false }

func (c *clusterPins) Lookup(_ context.Context, pod policy.Pod, _ string, _ bool) (digest.Digest, error) {
	return c.pins[pod.UID], c.err
}

func (c *clusterPins) Known(pod policy.Pod, _ string) (cluster.Pinned, bool) {
	if pod.Owner == nil {
		return cluster.Pinned{}, false
	}
	d, ok := c.pins[pod.Owner.UID]
	return cluster.Pinned{Digest: d}, ok
}

// share makes claims decide the pins that the node shares.
func (p *pinnedNode) share(claims cluster.Claimer, strict bool) {
	p.cluster = cluster.New(cluster.Config{Claims: claims, Pins: p.pins, Node: p.decider, Policy: p.policy, Strict: strict})
}

// TestImageStatusOfClusterPin answers for the digest that the cluster has for the pod's revision. It is absent if the node
// does not have that digest, so that kubelet pulls it with the pod's credentials.
func TestImageStatusOfClusterPin(t *testing.T) {
	v1, v2 := versionOf("one", "1000"), versionOf("two", "")
	p := newPinnedNode(t, policy.Workload)
	pins := &clusterPins{pins: map[string]digest.Digest{"uid-a": v1.root.Digest}}
	p.share(pins, false)
	p.put(v2, "", pinnedTag, v2.byDigest)
	spec := func(annotations map[string]string) *runtime.ImageSpec {
		return &runtime.ImageSpec{Image: pinnedTag, Annotations: annotations}
	}
	a, b := p.runSandbox("a", ""), p.runSandbox("b", "")
	p.expectStatus("a digest that the node does not have", spec(a), nil)
	p.expectStatus("a revision without a pin", spec(b), &v2)
	p.put(v1, "", v1.byDigest)
	p.expectStatus("the digest of the cluster", spec(a), &v1)
	if want := 3; pins.asked != want {
		t.Errorf("got %d requests for owners, want %d", pins.asked, want)
	}
	p.expectStatus("an image ID", &runtime.ImageSpec{Image: v2.id.String(), Annotations: a}, &v2)
	p.expectStatus("a digest", &runtime.ImageSpec{Image: v2.byDigest, Annotations: a}, &v2)
	p.expectStatus("no pod", &runtime.ImageSpec{Image: pinnedTag}, &v1)
	if want := 3; pins.asked != want {
		t.Errorf("got %d requests for owners after calls that no pin decides, want %d", pins.asked, want)
	}
}

// TestImageStatusWithoutTheCluster answers while the API server does not.
func TestImageStatusWithoutTheCluster(t *testing.T) {
	v := versionOf("one", "")
	p := newPinnedNode(t, policy.Workload)
	p.put(v, "", pinnedTag, v.byDigest)
	away := &clusterPins{err: &imagepin.Error{Reason: imagepin.ClusterUnavailable, Class: errdefs.ErrUnavailable}}
	p.share(away, false)
	a := p.runSandbox("a", "")
	p.expectStatus("local", &runtime.ImageSpec{Image: pinnedTag, Annotations: a}, &v)
	p.share(away, true)
	_, err := p.imageStatus(p.ctx(), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: pinnedTag, Annotations: a}}, nil)
	if !errdefs.IsUnavailable(err) {
		t.Errorf("fail: got %v, want ClusterUnavailable", err)
	}
}

// askedOwners sends the pods whose owners are asked for.
type askedOwners struct {
	cluster.Claimer
	pods chan policy.Pod
}

func (a *askedOwners) Owner(_ context.Context, pod policy.Pod) (*policy.Owner, error) {
	a.pods <- pod
	return nil, nil
}

// TestOwnerIsReadWithSandbox asks for the owner of a pod while its sandbox is created.
func TestOwnerIsReadWithSandbox(t *testing.T) {
	p := newPinnedNode(t, policy.Workload)
	asked := &askedOwners{pods: make(chan policy.Pod)}
	p.share(asked, false)
	request := &runtime.RunPodSandboxRequest{RuntimeHandler: "runc", Config: &runtime.PodSandboxConfig{
		Metadata: &runtime.PodSandboxMetadata{Namespace: "team", Name: "web-1-x2x9z", Uid: "uid-1"},
	}}
	_, err := (&containers{p.base}).runPodSandbox(p.ctx(), request, func(context.Context, *runtime.RunPodSandboxRequest) (*runtime.RunPodSandboxResponse, error) {
		select {
		case pod := <-asked.pods:
			if pod.Namespace != "team" || pod.Name != "web-1-x2x9z" || pod.UID != "uid-1" {
				t.Errorf("got a request for the owner of %+v", pod)
			}
		case <-time.After(time.Minute):
			t.Error("got no request for the owner of the pod")
		}
		return &runtime.RunPodSandboxResponse{PodSandboxId: "sandbox-1"}, nil
	})
	if err != nil {
		t.Error(err)
	}
}
