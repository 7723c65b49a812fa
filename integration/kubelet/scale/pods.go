package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// image is the tag that the agents claim.
const image = "registry.example.com/shop/web:v7"

func podsPath(namespace string) string { return "/api/v1/namespaces/" + namespace + "/pods" }

func uid(p policy.Pod) types.UID { return types.UID(p.UID) }

// ownerName returns the name of the ReplicaSet of a number.
func ownerName(number int) string { return fmt.Sprintf("web-%05d", number) }

// replicaSet returns the reference of a ReplicaSet as the controller of a pod. The ReplicaSet does not have to exist.
func replicaSet(namespace, name string) meta.OwnerReference {
	yes := true
	return meta.OwnerReference{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID(namespace + "-" + name), Controller: &yes}
}

// newPod returns a pod of a ReplicaSet that is bound to a node.
func newPod(name, node string, owner meta.OwnerReference) *core.Pod {
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: name, OwnerReferences: []meta.OwnerReference{owner}},
		Spec: core.PodSpec{
			NodeName: node, Containers: []core.Container{{Name: "app", Image: image}},
			Tolerations: []core.Toleration{{Operator: core.TolerationOpExists}}, // the nodes are not ready
		},
	}
}

// createPods creates a pod for each agent, and waits until each agent can read its own. group returns the number of the
// ReplicaSet of an agent's pod.
func createPods(ctx context.Context, kube *server, namespace string, all []*agent, group func(i int) int) ([]policy.Pod, error) {
	if err := kube.createNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	pods := make([]policy.Pod, len(all))
	var mu sync.Mutex
	var last struct {
		version int
		pod     policy.Pod
		node    string
	}
	err := parallel(ctx, len(all), func(ctx context.Context, i int) error {
		owner := ownerName(group(i))
		p := newPod(fmt.Sprintf("%s-%05d", owner, i), all[i].name, replicaSet(namespace, owner))
		if err := kube.Do(ctx, "POST", podsPath(namespace), p, p); err != nil {
			return err
		}
		pods[i] = policy.Pod{Namespace: namespace, Name: p.Name, UID: string(p.UID)}
		version, err := strconv.Atoi(p.ResourceVersion)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if version > last.version {
			last.version, last.pod, last.node = version, pods[i], all[i].name
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	// The Node authorizer learns of pods in the order of their versions.
	return pods, awaitReadable(ctx, kube, last.pod, last.node)
}

// awaitReadable waits until a node can read a pod from the cache of the API server.
func awaitReadable(ctx context.Context, kube *server, pod policy.Pod, node string) error {
	user, err := kube.Node(node)
	if err != nil {
		return err
	}
	return awaitCached(ctx, user, podsPath(pod.Namespace)+"/"+pod.Name)
}

// awaitCached waits until a user can read an object from the cache of the API server.
func awaitCached(ctx context.Context, user *cluster.Client, path string) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := user.Do(ctx, "GET", path+"?resourceVersion=0", nil, nil)
		if !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s cannot be read: %w", path, context.Cause(ctx))
		}
	}
}
