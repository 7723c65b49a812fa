package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/imagepin/imagepin/integration/node"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pull is the second step.
func (d *demo) pull(ctx context.Context) error {
	d.say("   PullImage %s, each time with the handler that it is for, as kubelet calls it.", d.ref())
	for _, h := range d.handlers {
		if err := d.pullFor(ctx, h, "v1"); err != nil {
			return err
		}
		d.count("pull for " + h.name)
	}
	for _, h := range d.handlers {
		if err := d.pullFor(ctx, h, "v1"); err != nil {
			return err
		}
	}
	d.count("pull again for each")
	return d.table(ctx)
}

// pullFor pulls the tag for a handler, which is expected to have that version of it then.
func (d *demo) pullFor(ctx context.Context, h *handler, version string) error {
	h.version = version
	_, err := d.node.Pull(ctx, d.ref(), h.name)
	d.claim(err == nil, h, "pull", "the pull failed: %s", oneLine(err))
	return d.collect(ctx)
}

// collect runs containerd's garbage collector, which deletes the layers that are to be discarded. It would run by itself, a
// moment later.
func (d *demo) collect(ctx context.Context) error {
	if err := d.node.GC(ctx); err != nil {
		return fmt.Errorf("collecting garbage: %w", err)
	}
	return nil
}

// pods is the third step.
func (d *demo) pods(ctx context.Context) error {
	if d.noPods != nil {
		d.say("   Left out: pods cannot run here.")
		return nil
	}
	d.say("   The program in the image prints what the image was built for. It is one for this machine in every image, so that no emulation is needed.")
	if err := d.runPods(ctx, "first"); err != nil {
		return err
	}
	d.count("first pod of each")
	return d.table(ctx)
}

// runPods runs a pod of each handler.
func (d *demo) runPods(ctx context.Context, name string) error {
	for _, h := range d.handlers {
		d.runPod(ctx, h, name)
		if err := d.collect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runPod runs a pod with kubelet's calls. Its container becomes the handler's.
func (d *demo) runPod(ctx context.Context, h *handler, name string) {
	res, err := d.node.RunAsKubelet(ctx, node.KubeletPod{
		PodOptions: node.PodOptions{Name: name + "-" + h.name, Handler: h.name}, Image: d.ref(), Gate: true,
	})
	h.runs, h.container, h.podErr, h.shown = h.version, res.Container, err, false
	if err != nil {
		h.container = nil
	}
	d.claim(err == nil, h, name+" pod", "the %s pod failed: %s", name, oneLine(err))
}

// moveTag is the fourth step.
func (d *demo) moveTag(ctx context.Context) error {
	if err := d.push(ctx, "v2"); err != nil {
		return err
	}
	d.say("   In the registry, %s was %s (v1) and is %s (v2) now.", tag, short(d.digests["v1"].String()), short(d.digests["v2"].String()))
	d.say("\n   The node, before anyone pulls:")
	if err := d.table(ctx); err != nil {
		return err
	}
	h := d.handlers[0]
	d.say("\n   After a pull for %s, and for nobody else. Containers go on with the version that they were made of:", h.name)
	if err := d.pullFor(ctx, h, "v2"); err != nil {
		return err
	}
	d.count("pull of v2 for " + h.name)
	return d.table(ctx)
}

// crash is the fifth step.
func (d *demo) crash(ctx context.Context) error {
	if err := d.node.Kill9(); err != nil {
		return err
	}
	d.reg.Down()
	if err := d.node.Start(ctx); err != nil {
		return fmt.Errorf("starting %s again: %w", d.name(), err)
	}
	d.say("   The restarted node, which cannot ask anybody:")
	if err := d.table(ctx); err != nil {
		return err
	}
	if d.noPods != nil {
		return nil
	}
	d.say("\n   A new pod of each handler beside the first ones, from what is on the node:")
	if err := d.runPods(ctx, "new"); err != nil {
		return err
	}
	if err := d.table(ctx); err != nil {
		return err
	}
	return d.allRun(ctx)
}

// allRun checks that the containers of before the crash run beside the new ones.
func (d *demo) allRun(ctx context.Context) error {
	res, err := d.node.Runtime().ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return err
	}
	want := 2 * len(d.handlers)
	d.say("   %d containers run on the node, those of before the crash included.", len(res.Containers))
	d.claim(len(res.Containers) == want, nil, "containers", "%d containers run, not %d", len(res.Containers), want)
	return nil
}

// table shows, for every handler, what the node says that it has and what its container printed, and checks that.
func (d *demo) table(ctx context.Context) error {
	t := table{header: []string{"HANDLER", "PLATFORM", "SNAPSHOTTER", "REGISTRY DIGEST", "IMAGE ID"}}
	withPods := slices.ContainsFunc(d.handlers, func(h *handler) bool { return h.container != nil || h.podErr != nil })
	if withPods {
		t.header = append(t.header, "THE CONTAINER PRINTED")
	}
	for _, h := range d.handlers {
		f, err := d.look(ctx, h)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			d.claim(false, h, "image", "%s", oneLine(err))
			f = facts{}
		}
		cells := []string{
			h.name,
			d.cell(h, "platform", f.platform, h.platform),
			d.cell(h, "snapshotter", f.snapshotter, h.snapshotter),
			d.cell(h, "digest", d.named(f.digest), d.named(d.digests[h.version].String())),
			short(f.id),
		}
		if withPods {
			cells = append(cells, d.printed(ctx, h, &t))
		}
		t.rows = append(t.rows, cells)
	}
	t.print(d.out)
	if t.marked() {
		d.say("   ! is not what was asked for")
	}
	for i, n := range t.notes {
		d.say("   [%d] %s", i+1, n)
	}
	return nil
}

// named is a short digest with the version of the image that it is of.
func (d *demo) named(digest string) string {
	for version, h := range d.digests {
		if h.String() == digest {
			return short(digest) + " (" + version + ")"
		}
	}
	return short(digest)
}
