package main

import (
	"context"
	"fmt"
	"slices"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

// pull is the second step.
func (d *demo) pull(ctx context.Context) error {
	d.say("   PullImage %s for each handler, as kubelet calls it.", d.ref())
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

// pullFor pulls the tag for a handler. After that, the handler must have the version.
func (d *demo) pullFor(ctx context.Context, h *handler, version string) error {
	h.version = version
	_, err := d.node.Pull(ctx, d.ref(), h.name)
	d.claim(err == nil, h, "pull", "the pull failed: %s", oneLine(err))
	return d.collect(ctx)
}

// collect runs containerd's garbage collector, which deletes the discarded layers. Otherwise it would run a moment
// later.
func (d *demo) collect(ctx context.Context) error {
	if err := d.node.GC(ctx); err != nil {
		return fmt.Errorf("collecting garbage: %w", err)
	}
	return nil
}

// pods is the third step.
func (d *demo) pods(ctx context.Context) error {
	if d.noPods != nil {
		d.say("   Skipped: pods cannot run on this machine.")
		return nil
	}
	d.say("   The program in each image prints the platform and version of the image. It is built for this machine in all images, so that no emulation is needed.")
	d.revisions = []*revision{{version: "v1", hash: "rev1"}}
	if err := d.runPods(ctx, "first"); err != nil {
		return err
	}
	d.count("first pod of each")
	return d.table(ctx)
}

// runPods runs a pod for each handler.
func (d *demo) runPods(ctx context.Context, name string) error {
	for _, h := range d.handlers {
		d.runPod(ctx, h, name)
		if err := d.collect(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runPod runs a pod for a handler. Its container becomes the container of the handler. A pod of the default handler is one
// of the newest revision.
func (d *demo) runPod(ctx context.Context, h *handler, name string) {
	var labels map[string]string
	if h == d.handlers[0] {
		labels = d.newest().labels()
	}
	c, err := d.startPod(ctx, h, name, labels)
	h.runs, h.container, h.podErr, h.shown = h.version, c, err, false
	if h == d.handlers[0] {
		d.newest().add(c, err)
	}
}

// startPod runs a pod with kubelet's calls. It returns its container, or nil and an error.
func (d *demo) startPod(ctx context.Context, h *handler, name string, labels map[string]string) (*node.Container, error) {
	d.started++
	res, err := d.node.RunAsKubelet(ctx, node.KubeletPod{
		PodOptions: node.PodOptions{Name: name + "-" + h.name, Handler: h.name, Labels: labels}, Image: d.ref(), Gate: true,
	})
	d.claim(err == nil, h, name+" pod", "the %s pod failed: %s", name, oneLine(err))
	if err != nil {
		return nil, err
	}
	return res.Container, nil
}

// whyRight is why the handlers may have two versions of one tag after the fourth step.
const whyRight = "Two builds are right here: a pull is for one handler, and changes no other. A pin keeps one build for the pods of a revision."

// moveTag is the fourth step.
func (d *demo) moveTag(ctx context.Context) error {
	if err := d.push(ctx, "v2"); err != nil {
		return err
	}
	d.say("   In the registry, %s moved from %s (v1) to %s (v2).", tag, short(d.digests["v1"].String()), short(d.digests["v2"].String()))
	d.say("\n   The node before a pull:")
	if err := d.table(ctx); err != nil {
		return err
	}
	h := d.handlers[0]
	d.say("\n   The node after a pull for %s only. Running containers are not affected:", h.name)
	if err := d.pullFor(ctx, h, "v2"); err != nil {
		return err
	}
	d.count("pull of v2 for " + h.name)
	if err := d.table(ctx); err != nil {
		return err
	}
	if !d.stock {
		d.say("   %s", whyRight)
	}
	return nil
}

// crash is the sixth step.
func (d *demo) crash(ctx context.Context) error {
	if err := d.node.Kill9(); err != nil {
		return err
	}
	d.reg.Down()
	if err := d.node.Start(ctx); err != nil {
		return fmt.Errorf("starting %s again: %w", d.name(), err)
	}
	d.say("   The restarted node, without a registry:")
	if err := d.table(ctx); err != nil {
		return err
	}
	if d.noPods != nil {
		return nil
	}
	d.say("\n   The node after a new pod for each handler, from the images on the node:")
	if err := d.runPods(ctx, "new"); err != nil {
		return err
	}
	if err := d.table(ctx); err != nil {
		return err
	}
	d.say("\n   The Deployment after a new pod of each revision:")
	d.runReplica(ctx, d.revisions[0])
	if err := d.deployment(ctx); err != nil {
		return err
	}
	return d.allRun(ctx)
}

// allRun checks that the containers from before the crash and the new ones run.
func (d *demo) allRun(ctx context.Context) error {
	res, err := d.node.Runtime().ListContainers(ctx, &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}},
	})
	if err != nil {
		return err
	}
	d.say("   %d containers run on the node, including those from before the crash.", len(res.Containers))
	d.claim(len(res.Containers) == d.started, nil, "containers", "%d containers run, want %d", len(res.Containers), d.started)
	return nil
}

// table prints the facts and the output of the container of each handler, and checks them.
func (d *demo) table(ctx context.Context) error {
	t := table{header: []string{"HANDLER", "PLATFORM", "SNAPSHOTTER", "REGISTRY DIGEST", "IMAGE ID"}}
	withPods := slices.ContainsFunc(d.handlers, func(h *handler) bool { return h.container != nil || h.podErr != nil })
	if withPods {
		t.header = append(t.header, "CONTAINER OUTPUT")
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
	t.show(d)
	return nil
}

// show prints a table with its notes.
func (t *table) show(d *demo) {
	t.print(d.out)
	if t.marked() {
		d.say("   ! is not the expected value")
	}
	for i, n := range t.notes {
		d.say("   [%d] %s", i+1, n)
	}
}

// named returns a short digest with the version of its image.
func (d *demo) named(digest string) string {
	for version, h := range d.digests {
		if h.String() == digest {
			return short(digest) + " (" + version + ")"
		}
	}
	return short(digest)
}
