package workload

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Pod is a pod and its node.
type Pod struct {
	Name string `json:"name"`
	Node string `json:"node"`
}

// Build is an image that pods run.
type Build struct {
	Digest string   `json:"digest"`
	Of     DigestOf `json:"digestOf"`
	// Pods are sorted by name.
	Pods []Pod `json:"pods"`
}

// Builds are the images that the pods of an owner run in one container. The zero value has none.
type Builds struct {
	pods map[ImageID][]Pod
}

// Add adds a pod that runs an image.
func (b *Builds) Add(id ImageID, pod *corev1.Pod) {
	if b.pods == nil {
		b.pods = make(map[ImageID][]Pod)
	}
	b.pods[id] = append(b.pods[id], Pod{Name: pod.Name, Node: pod.Spec.NodeName})
}

// Drift reports whether the pods run more than one image. Digests that cannot be compared are no drift.
func (b *Builds) Drift() bool {
	n := b.counts()
	return n[OfManifest] > 1 || n[OfConfig] > 1
}

// Comparable reports whether all digests identify the same, a manifest or a configuration.
func (b *Builds) Comparable() bool { return len(b.counts()) <= 1 }

func (b *Builds) counts() map[DigestOf]int {
	n := make(map[DigestOf]int)
	for id := range b.pods {
		n[id.Of]++
	}
	return n
}

// List returns the images, that of most pods first.
func (b *Builds) List() []Build {
	var all []Build
	for id, pods := range b.pods {
		pods = slices.SortedFunc(slices.Values(pods), func(x, y Pod) int { return cmp.Compare(x.Name, y.Name) })
		all = append(all, Build{Digest: id.Digest.String(), Of: id.Of, Pods: pods})
	}
	slices.SortFunc(all, func(x, y Build) int {
		return cmp.Or(cmp.Compare(len(y.Pods), len(x.Pods)), cmp.Compare(x.Digest, y.Digest), cmp.Compare(x.Of, y.Of))
	})
	return all
}
