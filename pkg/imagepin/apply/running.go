package apply

import (
	"cmp"
	"context"
	"slices"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// Container is a running container.
type Container struct {
	Namespace, Pod, Name string
	// Ref is the normalized reference by which the pod names the image. It is empty if the pod names it by its ID.
	Ref     string
	ImageID digest.Digest
}

// Usage is what the running containers have in common with the lock, and what they have not.
type Usage struct {
	// Running is the number of containers that run each image of the lock, by reference with a digest.
	Running map[string]int
	// Drifted are containers that run another digest than the lock has for their reference.
	Drifted []Drifted
	// Extra are the images on the node that the lock does not name.
	Extra []Extra
}

// Drifted is a container that runs another digest than the lock.
type Drifted struct {
	Container
	// Digest is the digest that the container runs. It is empty if the node no longer knows it.
	Digest digest.Digest
	// Locked is the digest that the lock has for the container's reference.
	Locked digest.Digest
}

// Extra is an image on the node that the lock does not name.
type Extra struct {
	ImageID digest.Digest
	Refs    []string
	// Digest is that of the first reference.
	Digest digest.Digest
	// Containers is the number of running containers of the image.
	Containers int
}

// Usage compares the running containers with the lock. It is empty if the node has no lock.
func (a *Applier) Usage(ctx context.Context) (Usage, error) {
	u := Usage{Running: make(map[string]int)}
	now := a.config.State.Get().Current
	if now == nil {
		return u, nil
	}
	containers, err := a.config.Containers(ctx)
	if err != nil {
		return u, err
	}
	locked := make(map[string]map[digest.Digest]bool) // image IDs, by reference with a digest
	tags := make(map[string]string)                   // reference with a digest, by name
	isLocked := make(map[digest.Digest]bool)
	for _, i := range now.Lock.Images {
		ids := make(map[digest.Digest]bool)
		for _, e := range a.config.Images.ByRoot(i.Ref.Digest()) {
			if imagepin.InRepository(e.Ref, i.Ref.Name()) {
				ids[e.ImageID], isLocked[e.ImageID] = true, true
			}
		}
		locked[i.Ref.String()], tags[i.Name().String()] = ids, i.Ref.String()
	}
	images := a.config.Images.Images()
	used := make(map[digest.Digest]int)
	for _, c := range containers {
		used[c.ImageID]++
		for ref, ids := range locked {
			if ids[c.ImageID] {
				u.Running[ref]++
			}
		}
		if ref, ok := tags[c.Ref]; ok && !locked[ref][c.ImageID] {
			u.Drifted = append(u.Drifted, Drifted{Container: c, Digest: runs(images, c), Locked: digestIn(ref)})
		}
	}
	u.Extra = a.extra(images, isLocked, used)
	return u, nil
}

// runs returns the digest of the image that a container runs, in the repository of its reference.
func runs(images []store.Image, c Container) digest.Digest {
	repository := c.Ref
	if ref, err := imagepin.ParseReference(c.Ref); err == nil {
		repository = ref.Name()
	}
	for _, img := range images {
		if img.ID != c.ImageID {
			continue
		}
		for _, e := range img.Entries {
			if imagepin.InRepository(e.Ref, repository) {
				return e.Root.Digest
			}
		}
	}
	return ""
}

// digestIn returns the digest in a normalized reference.
func digestIn(ref string) digest.Digest {
	parsed, err := imagepin.ParseReference(ref)
	if digested, ok := parsed.(interface{ Digest() digest.Digest }); err == nil && ok {
		return digested.Digest()
	}
	return ""
}

// extra returns the images that are not locked, without the sandbox image.
func (a *Applier) extra(images []store.Image, locked map[digest.Digest]bool, used map[digest.Digest]int) (all []Extra) {
	sandbox := a.config.Settings().SandboxImage
	for _, img := range images {
		if locked[img.ID] || slices.ContainsFunc(img.Entries, func(e imagepin.Entry) bool { return e.Ref == sandbox }) {
			continue
		}
		of := Extra{ImageID: img.ID, Refs: refsOf(img), Containers: used[img.ID]}
		for _, e := range img.Entries {
			if e.Ref == of.Refs[0] {
				of.Digest = e.Root.Digest
			}
		}
		all = append(all, of)
	}
	slices.SortFunc(all, func(a, b Extra) int { return cmp.Or(slices.Compare(a.Refs, b.Refs), cmp.Compare(a.ImageID, b.ImageID)) })
	return all
}

func refsOf(img store.Image) (refs []string) {
	for _, e := range img.Entries {
		refs = append(refs, e.Ref)
	}
	slices.Sort(refs)
	return slices.Compact(refs)
}

// countDrift notes how many containers run another digest than the lock, for the metrics. It logs a change.
func (a *Applier) countDrift(ctx context.Context) error {
	u, err := a.Usage(ctx)
	if err != nil {
		return err
	}
	if n := int64(len(u.Drifted)); a.drifted.Swap(n) != n && n > 0 {
		c := u.Drifted[0]
		log.G(ctx).WithFields(log.Fields{"containers": n, "pod": c.Namespace + "/" + c.Pod, "container": c.Name, "ref": c.Ref, "locked": c.Locked}).
			Warn("containers run another digest than the lock has")
	}
	return nil
}
