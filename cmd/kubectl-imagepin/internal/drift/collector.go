package drift

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
)

// Collector collects what pods run. The zero value is ready to use.
type Collector struct {
	pods   int
	owners map[ownerKey]*owner
}

// ownerKey identifies a revision of a workload.
type ownerKey struct {
	uid      types.UID
	revision string
}

type owner struct {
	namespace  string
	id         v1alpha1.Owner
	containers []*container // in the order of the first pod that has them
}

type container struct {
	workload.Container
	builds workload.Builds
}

// Add adds a pod. It ignores a pod without an owner, one that has finished and one that reports no digest yet.
func (c *Collector) Add(pod *corev1.Pod) {
	id, ok := workload.OwnerOf(pod)
	if !ok {
		return
	}
	running := workload.RunningIn(pod)
	if len(running) == 0 {
		return
	}
	c.pods++
	o := c.owner(pod.Namespace, id)
	for _, r := range running {
		r.Image = comparedImage(id, r.Image)
		o.container(r.Container).builds.Add(r.ImageID, pod)
	}
}

// comparedImage returns the image by which containers are grouped. A revision has one template, so its pods differ only
// if a webhook replaced the tag with the digest of the moment: the digest is what is compared. An owner without
// revisions may replace its pods one by one with another image, which is no drift.
func comparedImage(o v1alpha1.Owner, image string) string {
	i, err := workload.ParseImage(image)
	switch {
	case err != nil:
		return image
	case i.Digest != "" && !workload.HasOneTemplate(o):
		return i.Repository + "@" + i.Digest.String()
	case i.Tagged != "":
		return i.Tagged
	}
	return i.Repository
}

// Report returns what was collected.
func (c *Collector) Report() *Report {
	r := &Report{Pods: c.pods, Owners: []Owner{}}
	for _, o := range c.owners {
		r.Owners = append(r.Owners, o.report())
	}
	slices.SortFunc(r.Owners, func(x, y Owner) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name),
			cmp.Compare(x.Revision, y.Revision), cmp.Compare(x.UID, y.UID))
	})
	return r
}

func (c *Collector) owner(namespace string, id v1alpha1.Owner) *owner {
	if c.owners == nil {
		c.owners = make(map[ownerKey]*owner)
	}
	key := ownerKey{id.UID, id.Revision}
	if c.owners[key] == nil {
		c.owners[key] = &owner{namespace: namespace, id: id}
	}
	return c.owners[key]
}

func (o *owner) container(id workload.Container) *container {
	for _, c := range o.containers {
		if c.Container == id {
			return c
		}
	}
	c := &container{Container: id}
	o.containers = append(o.containers, c)
	return c
}

func (o *owner) report() Owner {
	r := Owner{Namespace: o.namespace, Owner: o.id}
	for _, c := range o.containers {
		drift := c.builds.Drift()
		r.Drift = r.Drift || drift
		r.Containers = append(r.Containers, Container{
			Name: c.Name, Type: c.Type, Image: c.Image, Drift: drift, Comparable: c.builds.Comparable(), Builds: c.builds.List(),
		})
	}
	return r
}
