package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
)

// pauseTag is the sandbox image.
const pauseTag = "pause:3.10"

// pinned is the configuration of imagepin.
const pinned = `
[plugins."io.containerd.imagepin.v1.images"]
version_consistency = "workload"
`

// start is the first step. It starts the registry with the first version of the image, and the node.
func (d *demo) start(ctx context.Context) error {
	if err := d.startRegistry(ctx); err != nil {
		return err
	}
	if err := d.startNode(ctx); err != nil {
		return err
	}
	version, err := d.node.Client().Version(ctx)
	if err != nil {
		return err
	}
	d.say("   registry    %s, with %s: one tag, an index of %s and %s", d.reg.Host(), tag, d.handlers[0].platform, d.handlers[2].platform)
	d.say("   containerd  %s (%s), below %s,", version.Version, d.name(), d.node.Root())
	d.say("               with discard_unpacked_layers = true: layers are deleted after they are unpacked")
	if node.RestrictsOOMScore() {
		d.say("               and restrict_oom_score_adj = true: this machine does not grant CAP_SYS_RESOURCE")
	}
	if !d.stock {
		d.say("   imagepin    version_consistency = \"workload\": the first pod of a revision pins its digest")
	}
	if d.noPods != nil {
		d.say("   pods        cannot run on this machine: %s", oneLine(d.noPods))
	}
	for _, h := range d.handlers {
		d.say("   handler     %-8s platform %-13s snapshotter %s", h.name, h.platform, h.snapshotter)
	}
	return nil
}

func (d *demo) startRegistry(ctx context.Context) (err error) {
	if d.reg, err = registry.New(); err != nil {
		return err
	}
	pause, err := images.PauseIndex(ctx)
	if err != nil {
		return err
	}
	if _, err := d.reg.Push(pauseTag, pause); err != nil {
		return err
	}
	return d.push(ctx, "v1")
}

// push moves the tag to a version. It does not use the network, so that it does not count as a registry request.
func (d *demo) push(ctx context.Context, version string) error {
	idx, err := images.AppIndex(ctx, images.Options{Version: version}, d.handlers[0].platform, d.handlers[2].platform)
	if err != nil {
		return err
	}
	d.digests[version], err = d.reg.Push(tag, idx)
	return err
}

func (d *demo) startNode(ctx context.Context) (err error) {
	opts := node.Options{Binary: node.Ours, SandboxImage: d.reg.Ref(pauseTag), DiscardUnpackedLayers: true, Extra: pinned}
	if d.stock {
		opts.Binary, opts.Extra = node.Stock, ""
	}
	for _, h := range d.handlers {
		o := node.Handler{Name: h.name, Snapshotter: h.snapshotter}
		if h.platform != images.HostPlatform() {
			o.Platform = h.platform
		}
		opts.Handlers = append(opts.Handlers, o)
	}
	_, err = os.Stat(filepath.Join(node.BinDir(), "runc"))
	opts.NoPods = err != nil
	if d.node, err = node.New(opts); err != nil {
		return err
	}
	d.noPods = canRunPods(ctx, d.node)
	if err := d.node.Start(ctx); err != nil {
		return fmt.Errorf("starting %s: %w", d.name(), err)
	}
	return nil
}
