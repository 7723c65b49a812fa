package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// facts are what a node says about the tag for one handler.
type facts struct {
	platform    string
	snapshotter string
	digest      string // what the registry gave for the tag
	id          string // the image ID
}

// look asks the node what the tag means for a handler: with imagepin through the CRI, of stock containerd, whose CRI does not
// tell, through its own API.
func (d *demo) look(ctx context.Context, h *handler) (facts, error) {
	res, err := d.node.Images().ImageStatus(ctx, &cri.ImageStatusRequest{
		Image: &cri.ImageSpec{Image: d.ref(), RuntimeHandler: h.name}, Verbose: true,
	})
	if err != nil {
		return facts{}, fmt.Errorf("ImageStatus: %w", err)
	}
	if res.Image == nil {
		return facts{}, errors.New("ImageStatus: the image is not present")
	}
	if d.stock {
		return d.lookStock(ctx, h, res.Image.Id)
	}
	return d.lookInfo(h, res.Image.Id, res.Info["imagepin"])
}

// lookInfo reads imagepin's part of the verbose image status.
func (d *demo) lookInfo(h *handler, id, info string) (facts, error) {
	var said struct {
		Keys []struct {
			Ref, Platform, Snapshotter, Digest string
			Handlers                           []string
		}
	}
	if err := json.Unmarshal([]byte(info), &said); err != nil {
		return facts{}, fmt.Errorf("the verbose info of ImageStatus: %w", err)
	}
	for _, k := range said.Keys {
		if k.Ref == d.ref() && slices.Contains(k.Handlers, h.name) {
			return facts{platform: k.Platform, snapshotter: k.Snapshotter, digest: k.Digest, id: id}, nil
		}
	}
	return facts{}, fmt.Errorf("ImageStatus has no key of %s for this handler", tag)
}

// lookStock reads containerd's image record, the image's config, and which snapshotters have it unpacked.
func (d *demo) lookStock(ctx context.Context, h *handler, id string) (facts, error) {
	ctx = namespaces.WithNamespace(ctx, node.Namespace)
	img, err := d.node.Client().GetImage(ctx, d.ref())
	if err != nil {
		return facts{}, err
	}
	spec, err := img.Spec(ctx)
	if err != nil {
		return facts{}, err
	}
	f := facts{platform: spec.OS + "/" + spec.Architecture, digest: img.Target().Digest.String(), id: id}
	var have []string
	for _, s := range []string{"overlayfs", "native"} {
		ok, err := img.IsUnpacked(ctx, s)
		if err != nil {
			return facts{}, err
		}
		if ok {
			have = append(have, s)
		}
	}
	f.snapshotter = strings.Join(have, ", ")
	if slices.Contains(have, h.snapshotter) {
		f.snapshotter = h.snapshotter
	}
	return f, nil
}

// printed is what the handler's container printed, from its log, or why there is none. It must still run.
func (d *demo) printed(ctx context.Context, h *handler, t *table) string {
	if h.container == nil {
		if h.shown {
			return "no pod, as above"
		}
		h.shown = true
		return "no pod " + t.note(h.podErr)
	}
	lines, err := h.container.Output(ctx, 1)
	if err == nil {
		err = running(ctx, h.container)
	}
	if err != nil {
		d.claim(false, h, "container", "its container: %s", oneLine(err))
		return "no container " + t.note(err)
	}
	want := images.Options{Platform: h.platform, Version: h.runs}
	d.claim(lines[0] == want.Line(0), h, "line", "its container printed %q, not %q", lines[0], want.Line(0))
	// The rest of the line says the same once more, from the root filesystem.
	said, _, _ := strings.Cut(lines[0], " rootfs=")
	if lines[0] != want.Line(0) {
		said += mark
	}
	return said
}

func running(ctx context.Context, c *node.Container) error {
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if status.State != cri.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("it does not run any more (%s)", status.State)
	}
	return nil
}
