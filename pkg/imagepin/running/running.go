package running

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Container is a running container and one of its images: its own, or that of an image volume.
type Container struct {
	// ID identifies the container in the CRI.
	ID, Name string
	Pod      policy.Pod
	// Handler is the runtime handler of the pod; empty means the default.
	Handler   string
	CreatedAt time.Time
	// Volume is the path of the image volume in the container. It is empty for the container's own image.
	Volume string
	// Ref is the normalized reference by which the pod names the image. It is empty if the pod names it by its ID.
	Ref string
	// ImageID is the ID of the image that runs. It is empty if the node does not know it.
	ImageID digest.Digest
}

// Compared is a container, and how its image compares with the pin of its reference.
type Compared struct {
	Container
	// Digest is what the registry returned for the image that runs: an index, or a manifest. It is empty if the node no longer knows it.
	Digest digest.Digest
	// Pin is the pin that applies to the container, or nil.
	Pin *pin.Pin
	// Err is why it is not known which pin applies, or nil.
	Err error
	// Differs reports that the container runs another image than the pin means, and Since since when. An index with another digest that
	// has the same image for the container's target is not another image.
	Differs bool
	Since   time.Time
}

// Images finds the images of the node. [store.Store] implements it.
type Images interface {
	ByID(id digest.Digest) []imagepin.Entry
	ByRoot(root digest.Digest) []imagepin.Entry
	FindDamaged(name string) []store.Damaged
}

// Pins finds the pin that applies to a normalized reference of a pod, or nil. [decide.Decider] implements it.
type Pins interface {
	PinOf(ctx context.Context, ref string, pod policy.Pod) (*pin.Pin, error)
}

// Comparer compares containers with pins. It changes nothing, and sends no request to a registry. All fields are required.
type Comparer struct {
	// List returns the running containers, and their image volumes.
	List     func(ctx context.Context) ([]Container, error)
	Images   Images
	Pins     Pins
	Runtimes func() *runtimeplatform.Set
}

// Containers returns the running containers by namespace, pod and name. Each is followed by its image volumes.
func (c *Comparer) Containers(ctx context.Context) ([]Container, error) {
	all, err := c.List(ctx)
	slices.SortFunc(all, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Name, b.Name),
			cmp.Compare(a.ID, b.ID), cmp.Compare(a.Volume, b.Volume))
	})
	return all, err
}

// Compare compares a container with the pin of its reference.
func (c *Comparer) Compare(ctx context.Context, container Container) Compared {
	compared := Compared{Container: container}
	if container.Ref != "" {
		compared.Pin, compared.Err = c.Pins.PinOf(ctx, container.Ref, container.Pod)
	}
	target := c.target(container.Handler)
	entries := c.entries(container, target)
	if len(entries) > 0 {
		compared.Digest = entries[0].Root.Digest
	}
	p := compared.Pin
	if p == nil {
		return compared
	}
	has := func(d digest.Digest) bool {
		return slices.ContainsFunc(entries, func(e imagepin.Entry) bool { return e.Root.Digest == d || e.Manifest == d })
	}
	switch {
	case has(p.Root.Digest):
		compared.Digest = p.Root.Digest
	case len(entries) > 0 || c.hasAnother(p.Root.Digest, target, container.ImageID):
		compared.Differs, compared.Since = true, since(container, *p, has)
	}
	return compared
}

// target returns the target of a handler. It is empty if the handler is no longer configured.
func (c *Comparer) target(handler string) runtimeplatform.Target {
	rt, err := c.Runtimes().Lookup(handler)
	if err != nil {
		return runtimeplatform.Target{}
	}
	return rt.Target
}

// entries returns the entries of the image of a container: those in the repository of its reference first, then those for its target,
// then the newest.
func (c *Comparer) entries(container Container, target runtimeplatform.Target) []imagepin.Entry {
	if container.ImageID == "" {
		return nil
	}
	entries := slices.Clone(c.Images.ByID(container.ImageID))
	for _, d := range c.Images.FindDamaged(container.ImageID.String()) {
		entries = append(entries, d.Entry)
	}
	repository := ""
	if ref, err := imagepin.ParseReference(container.Ref); err == nil {
		repository = ref.Name()
	}
	rank := func(e imagepin.Entry) (rank int) {
		if !imagepin.InRepository(e.Ref, repository) {
			rank += 2
		}
		if e.Target != target {
			rank++
		}
		return rank
	}
	slices.SortStableFunc(entries, func(a, b imagepin.Entry) int {
		if by := rank(a) - rank(b); by != 0 {
			return by
		}
		return b.ReadyAt.Compare(a.ReadyAt)
	})
	return entries
}

// hasAnother reports whether a digest is on the node, and its image for a target is not the one with the ID.
func (c *Comparer) hasAnother(root digest.Digest, target runtimeplatform.Target, id digest.Digest) bool {
	return id != "" && slices.ContainsFunc(c.Images.ByRoot(root), func(e imagepin.Entry) bool { return e.Target == target && e.ImageID != id })
}

// since returns when a container began to differ from its pin: when the pin left the last digest that has the container's image, or
// when the container was created, if that was later.
func since(container Container, p pin.Pin, has func(digest.Digest) bool) time.Time {
	at := p.MadeAt
	for _, h := range slices.Backward(p.History) {
		if has(h.Digest) {
			break
		}
		at = h.From
	}
	if container.CreatedAt.After(at) {
		return container.CreatedAt
	}
	return at
}
