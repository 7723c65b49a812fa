package sim

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/image-spec/identity"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sandbox and container have the fields of containerd's CRI that concern images.
type sandbox struct {
	id, handler string
	made        int64
	config      *runtime.PodSandboxConfig
}

type container struct {
	id, sandbox string
	image       string // ID
	as          *runtime.ImageSpec
	snapshot    string
	// config is the ID of the image whose snapshot the container uses.
	config string
}

func decode[T proto.Message](b []byte, into T) T {
	if err := proto.Unmarshal(b, into); err != nil {
		panic(err)
	}
	return into
}

// answer serves a CRI call.
func (c *containerdCRI) answer(ctx context.Context, method string, req []byte) (proto.Message, error) {
	select {
	case <-c.initialized:
	case <-ctx.Done():
		return nil, status.Error(codes.Unavailable, "server is not initialized yet")
	}
	switch method {
	case "ImageStatus":
		img, ok := c.images.Resolve(decode(req, &runtime.ImageStatusRequest{}).GetImage().GetImage())
		if !ok {
			return &runtime.ImageStatusResponse{}, nil
		}
		return &runtime.ImageStatusResponse{Image: &runtime.Image{Id: img.ID, RepoTags: img.References}}, nil
	case "RemoveImage":
		return &runtime.RemoveImageResponse{}, c.images.RemoveImage(ctx, decode(req, &runtime.RemoveImageRequest{}).GetImage().GetImage())
	case "RunPodSandbox":
		return c.runPodSandbox(decode(req, &runtime.RunPodSandboxRequest{})), nil
	case "ListPodSandbox":
		return c.listPodSandbox(), nil
	case "PodSandboxStatus":
		return c.podSandboxStatus(decode(req, &runtime.PodSandboxStatusRequest{}).GetPodSandboxId())
	case "ListContainers":
		return c.listContainers(), nil
	case "ContainerStatus":
		return c.containerStatus(decode(req, &runtime.ContainerStatusRequest{}))
	case "CreateContainer":
		return c.createContainer(ctx, decode(req, &runtime.CreateContainerRequest{}))
	case "RemoveContainer":
		return &runtime.RemoveContainerResponse{}, c.removeContainer(ctx, decode(req, &runtime.RemoveContainerRequest{}).GetContainerId())
	case "StopPodSandbox":
		return &runtime.StopPodSandboxResponse{}, nil
	case "RemovePodSandbox":
		return &runtime.RemovePodSandboxResponse{}, c.removePodSandbox(ctx, decode(req, &runtime.RemovePodSandboxRequest{}).GetPodSandboxId())
	}
	return nil, fmt.Errorf("%s is not modelled", method)
}

func (c *containerdCRI) runPodSandbox(r *runtime.RunPodSandboxRequest) proto.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made++
	s := &sandbox{
		id: fmt.Sprintf("sandbox-%s-%d", r.GetConfig().GetMetadata().GetName(), c.made), handler: r.GetRuntimeHandler(),
		made: time.Now().UnixNano(), config: r.GetConfig(),
	}
	c.sandboxes[s.id] = s
	return &runtime.RunPodSandboxResponse{PodSandboxId: s.id}
}

func (c *containerdCRI) listPodSandbox() proto.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &runtime.ListPodSandboxResponse{}
	for _, id := range slices.Sorted(maps.Keys(c.sandboxes)) {
		s := c.sandboxes[id]
		resp.Items = append(resp.Items, &runtime.PodSandbox{
			Id: id, RuntimeHandler: s.handler, CreatedAt: s.made, Metadata: s.config.GetMetadata(),
			Annotations: s.config.GetAnnotations(), Labels: s.config.GetLabels(),
		})
	}
	return resp
}

func (c *containerdCRI) podSandboxStatus(id string) (proto.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sandboxes[id]
	if s == nil {
		return nil, fmt.Errorf("an error occurred when try to find sandbox: %w", errdefs.ErrNotFound)
	}
	return &runtime.PodSandboxStatusResponse{Status: &runtime.PodSandboxStatus{
		Id: id, RuntimeHandler: s.handler, CreatedAt: s.made, Metadata: s.config.GetMetadata(),
		Annotations: s.config.GetAnnotations(), Labels: s.config.GetLabels(),
	}}, nil
}

func (c *containerdCRI) listContainers() proto.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp := &runtime.ListContainersResponse{}
	for _, id := range slices.Sorted(maps.Keys(c.containers)) {
		k := c.containers[id]
		resp.Containers = append(resp.Containers, &runtime.Container{
			Id: id, PodSandboxId: k.sandbox, Image: k.as, ImageRef: k.image, ImageId: k.image,
		})
	}
	return resp
}

func (c *containerdCRI) containerStatus(r *runtime.ContainerStatusRequest) (proto.Message, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.containers[r.GetContainerId()]
	if k == nil {
		return nil, fmt.Errorf("container %s: %w", r.GetContainerId(), errdefs.ErrNotFound)
	}
	return &runtime.ContainerStatusResponse{Status: &runtime.ContainerStatus{Id: k.id, Image: k.as, ImageRef: k.image, ImageId: k.image}}, nil
}

// createContainer models the image handling of CreateContainer in internal/cri/server/container_create.go:
// LocalResolve, toContainerdImage (helpers.go), which reads the record of the first reference, and WithNewSnapshot
// (internal/cri/opts/container.go), which unpacks the image if the snapshot is missing and the layers exist.
func (c *containerdCRI) createContainer(ctx context.Context, r *runtime.CreateContainerRequest) (proto.Message, error) {
	since, complete := c.w.steps, c.complete(r)
	resp, err := c.makeContainer(ctx, r)
	// imagepin forwards the call, and must protect the image until the call returns.
	if errdefs.IsNotFound(err) && complete && !c.w.facts.toolWrote(since) && c.w.facts.killedAt.Load() < int64(since) {
		c.w.wrong(removedInUse, "CreateContainer of %s: %v", r.GetConfig().GetImage().GetImage(), err)
	}
	return resp, err
}

// complete reports whether the sandbox and all parts of the image of a container exist, and the CRI knows its records.
func (c *containerdCRI) complete(r *runtime.CreateContainerRequest) bool {
	ctx := inK8s(context.Background())
	c.mu.Lock()
	box := c.sandboxes[r.GetPodSandboxId()]
	c.mu.Unlock()
	img, ok := c.images.Resolve(r.GetConfig().GetImage().GetImage())
	if box == nil || !ok {
		return false
	}
	record, err := c.w.images.Get(ctx, img.References[0])
	if err != nil {
		return false
	}
	manifest, err := images.Manifest(ctx, c.w.blobs, record.Target, platforms.All)
	if err != nil {
		return false
	}
	if _, err := content.ReadBlob(ctx, c.w.blobs, manifest.Config); err != nil || manifest.Config.Digest.String() != img.ID {
		return false
	}
	_, name := c.w.target(cmp.Or(box.handler, "runc"))
	_, err = c.w.db.Snapshotter(name).Stat(ctx, img.ChainID.String())
	return err == nil
}

func (c *containerdCRI) makeContainer(ctx context.Context, r *runtime.CreateContainerRequest) (proto.Message, error) {
	c.mu.Lock()
	box := c.sandboxes[r.GetPodSandboxId()]
	c.mu.Unlock()
	if box == nil {
		return nil, fmt.Errorf("sandbox %s: %w", r.GetPodSandboxId(), errdefs.ErrNotFound)
	}
	proc := c.process()
	if err := c.w.step(ctx, proc, "creates a container: asks for the status of %s", box.id); err != nil {
		return nil, err
	}
	img, ok := c.images.Resolve(r.GetConfig().GetImage().GetImage())
	if !ok {
		return nil, fmt.Errorf("failed to resolve image %q: %w", r.GetConfig().GetImage().GetImage(), errdefs.ErrNotFound)
	}
	name := img.References[0]
	if err := c.w.step(ctx, proc, "creates a container: gets record %s of %s", name, img.ID); err != nil {
		return nil, err
	}
	ctx = inK8s(ctx)
	record, err := c.w.images.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("failed to get image from containerd %q: %w", img.ID, err)
	}
	manifest, err := images.Manifest(ctx, c.w.blobs, record.Target, platforms.Default())
	if err != nil {
		// A record of another platform targets its manifest.
		manifest, err = images.Manifest(ctx, c.w.blobs, record.Target, platforms.All)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to get manifest of %q: %w", img.ID, err)
	}
	if _, err := content.ReadBlob(ctx, c.w.blobs, manifest.Config); err != nil {
		return nil, fmt.Errorf("failed to get image spec of %q: %w", img.ID, err)
	}
	config, err := readImage(ctx, c.w.blobs, manifest.Config)
	if err != nil {
		return nil, err
	}
	_, snapshotter := c.w.target(cmp.Or(box.handler, "runc"))
	sn := c.w.db.Snapshotter(snapshotter)
	if err := c.w.step(ctx, proc, "creates a container: snapshot of %s", img.ID); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.made++
	id := fmt.Sprintf("container-%d", c.made)
	c.mu.Unlock()
	chain := identity.ChainID(slices.Clone(config.RootFS.DiffIDs)).String()
	l, err := c.w.leases.Create(ctx, leases.WithID("container "+id), leases.WithExpiration(24*time.Hour))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.w.leases.Delete(context.WithoutCancel(ctx), l) }()
	ctx = leases.WithLease(ctx, l.ID)
	_, err = sn.Prepare(ctx, id, chain)
	if errdefs.IsNotFound(err) {
		parent := ""
		for i, d := range manifest.Layers {
			if _, err := content.ReadBlob(ctx, c.w.blobs, d); err != nil {
				return nil, fmt.Errorf("error unpacking image: failed to extract layer %s: %w", d.Digest, err)
			}
			next := identity.ChainID(slices.Clone(config.RootFS.DiffIDs[:i+1])).String()
			if _, err := sn.Stat(ctx, next); err != nil {
				if _, err := sn.Prepare(ctx, id+"-extract", parent); err != nil {
					return nil, err
				}
				if err := sn.Commit(ctx, next, id+"-extract"); err != nil {
					return nil, err
				}
			}
			parent = next
		}
		_, err = sn.Prepare(ctx, id, chain)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to create containerd container: %w", err)
	}
	// In containerd, the container's record is the garbage collection root of its snapshot. Here it is a label.
	_, err = sn.Update(ctx, snapshots.Info{Name: id, Labels: map[string]string{"containerd.io/gc.root": "container"}}, "labels.containerd.io/gc.root")
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.containers[id] = &container{id: id, sandbox: box.id, image: img.ID, as: r.GetConfig().GetImage(), snapshot: snapshotter, config: manifest.Config.Digest.String()}
	c.mu.Unlock()
	return &runtime.CreateContainerResponse{ContainerId: id}, nil
}

// imageOf returns the ID of the image of a container. It checks that the container uses the snapshot of that image.
func (c *containerdCRI) imageOf(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.containers[id]
	if k == nil {
		return ""
	}
	if k.config != k.image {
		c.w.wrong(otherImage, "container %s of %s uses the snapshot of %s", id, k.image, k.config)
	}
	return k.image
}

// has reports whether a sandbox or a container exists.
func (c *containerdCRI) has(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sandboxes[id] != nil || c.containers[id] != nil
}

// removePodSandbox removes the containers of a sandbox and then the sandbox, as containerd does
// (internal/cri/server/sandbox_remove.go).
func (c *containerdCRI) removePodSandbox(ctx context.Context, id string) error {
	c.mu.Lock()
	var inside []string
	for _, name := range sorted(c.containers) {
		if c.containers[name].sandbox == id {
			inside = append(inside, name)
		}
	}
	c.mu.Unlock()
	for _, name := range inside {
		if err := c.removeContainer(ctx, name); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.sandboxes, id)
	return nil
}

func (c *containerdCRI) removeContainer(ctx context.Context, id string) error {
	c.mu.Lock()
	k := c.containers[id]
	delete(c.containers, id)
	c.mu.Unlock()
	if k == nil {
		return nil
	}
	err := c.w.db.Snapshotter(k.snapshot).Remove(inK8s(ctx), id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
