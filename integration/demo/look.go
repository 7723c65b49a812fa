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

// facts describe the image of the tag for one handler.
type facts struct {
	platform    string
	snapshotter string
	digest      string // of the tag in the registry, when it was pulled
	id          string // image ID
}

// look returns the facts of the tag for a handler. With imagepin it uses the CRI. The CRI of stock containerd does not
// have all facts, so that it also uses containerd's API.
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
	var verbose struct {
		Keys []struct {
			Ref, Platform, Snapshotter, Digest string
			Handlers                           []string
		}
	}
	if err := json.Unmarshal([]byte(info), &verbose); err != nil {
		return facts{}, fmt.Errorf("verbose info of ImageStatus: %w", err)
	}
	for _, k := range verbose.Keys {
		if k.Ref == d.ref() && slices.Contains(k.Handlers, h.name) {
			return facts{platform: k.Platform, snapshotter: k.Snapshotter, digest: k.Digest, id: id}, nil
		}
	}
	return facts{}, fmt.Errorf("ImageStatus has no key of %s for this handler", tag)
}

// lookStock reads containerd's image record and the image's config, and checks in which snapshotters it is unpacked.
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

// printed returns what the handler's container printed, or why there is no container. It checks that the container
// still runs.
func (d *demo) printed(ctx context.Context, h *handler, t *table) string {
	if h.container == nil {
		if h.shown {
			return "no pod, see above"
		}
		h.shown = true
		return "no pod " + t.note(h.podErr)
	}
	return d.output(ctx, h.container, h, h.runs, t)
}

// output returns what a container of a handler printed. It checks that it runs the image of a version, and still runs.
func (d *demo) output(ctx context.Context, c *node.Container, h *handler, version string, t *table) string {
	lines, err := c.Output(ctx, 1)
	if err == nil {
		err = running(ctx, c)
	}
	if err != nil {
		d.claim(false, h, "container", "the container failed: %s", oneLine(err))
		return "no container " + t.note(err)
	}
	want := images.Options{Platform: h.platform, Version: version}
	d.claim(lines[0] == want.Line(0), h, "line", "the container printed %q, want %q", lines[0], want.Line(0))
	// The rest of the line has the same values, from the root filesystem.
	text, _, _ := strings.Cut(lines[0], " rootfs=")
	if lines[0] != want.Line(0) {
		text += mark
	}
	return text
}

func running(ctx context.Context, c *node.Container) error {
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if status.State != cri.ContainerState_CONTAINER_RUNNING {
		return fmt.Errorf("not running (%s)", status.State)
	}
	return nil
}
