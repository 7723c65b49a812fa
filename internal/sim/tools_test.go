package sim

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// tool is a step of another tool that then writes.
func (k *caller) tool(format string, args ...any) {
	k.step(format, args...)
	k.w.facts.tool(k.w.steps)
}

// ctrPull pulls an image, as ctr images pull does. It writes content under a lease. Then it unpacks the image and
// writes its record, in this order (as client.Pull does) or in the other (as the transfer service does).
func (k *caller) ctrPull() {
	ref := k.ref()
	b := k.w.registry.tag(ref)
	img := b.images[native()]
	w := k.w
	k.tool("makes a lease")
	l, err := w.leases.Create(k.ctx, leases.WithID("ctr "+k.name), leases.WithExpiration(24*time.Hour))
	if err != nil {
		w.wrong(callFailed, "ctr: %v", err)
		return
	}
	ctx := leases.WithLease(k.ctx, l.ID)
	fail := func(err error) {
		if err != nil {
			w.wrong(callFailed, "ctr: %v", err)
		}
	}
	k.tool("fetches %s", b.name)
	for _, d := range slices.Concat(img.layers, []ocispec.Descriptor{img.config, img.manifest, b.root}) {
		fail(put(ctx, w.blobs, d, w.registry.blobs[d.Digest]))
	}
	only := images.HandlerFunc(func(context.Context, ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		return []ocispec.Descriptor{img.manifest}, nil
	})
	if b.root.Digest != img.manifest.Digest {
		_, err = images.SetChildrenLabels(w.blobs, only)(ctx, b.root)
		fail(err)
	}
	_, err = images.SetChildrenLabels(w.blobs, images.ChildrenHandler(w.blobs))(ctx, img.manifest)
	fail(err)
	if k.rng.IntN(2) == 0 {
		k.tool("unpacks %s", b.name)
		fail(k.unpack(ctx, img))
		k.tool("records %s → %s", ref, b.name)
		fail(k.set(ctx, ref, b.root))
	} else {
		k.tool("records %s → %s", ref, b.name)
		fail(k.set(ctx, ref, b.root))
		k.tool("unpacks %s", b.name)
		fail(k.unpack(ctx, img))
	}
	k.tool("deletes its lease")
	fail(w.leases.Delete(k.ctx, l))
	if k.rng.IntN(2) == 0 {
		k.tool("collects")
		fail(w.collect(k.ctx))
	}
}

// set creates or updates a record, as ctr does.
func (k *caller) set(ctx context.Context, ref string, target ocispec.Descriptor) error {
	o := &op{actor: k.name, method: "ctr", ref: ref, root: target.Digest, start: k.w.steps, end: k.w.steps, ended: true}
	if b := k.w.registry.byRoot(target.Digest); b != nil {
		o.id = b.images[native()].config.Digest.String()
	}
	k.w.facts.mu.Lock()
	k.w.facts.ops = append(k.w.facts.ops, o)
	k.w.facts.mu.Unlock()
	_, err := k.w.images.Create(ctx, images.Image{Name: ref, Target: target})
	if errdefs.IsAlreadyExists(err) {
		_, err = k.w.images.Update(ctx, images.Image{Name: ref, Target: target}, "target")
	}
	return err
}

// unpack commits the snapshots of an image in the default snapshotter.
func (k *caller) unpack(ctx context.Context, img image) error {
	sn := k.w.db.Snapshotter("first")
	parent := ""
	var ids []digest.Digest
	for _, l := range img.layers {
		ids = append(ids, l.Digest)
		name := identity.ChainID(slices.Clone(ids)).String()
		if _, err := sn.Stat(ctx, name); err != nil {
			extract := "extract-" + k.name + name
			if _, err := sn.Prepare(ctx, extract, parent); err != nil {
				return err
			}
			if err := sn.Commit(ctx, name, extract); err != nil && !errdefs.IsAlreadyExists(err) {
				return err
			}
		}
		parent = name
	}
	if parent == "" {
		return nil
	}
	label := "containerd.io/gc.ref.snapshot.first"
	_, err := k.w.blobs.Update(ctx, content.Info{Digest: img.config.Digest, Labels: map[string]string{label: parent}}, "labels."+label)
	return err
}

// ctrTag tags an existing image, as ctr images tag --force does.
func (k *caller) ctrTag() {
	k.tool("looks for an image to tag")
	from, to := k.ref(), k.ref()
	img, err := k.w.images.Get(k.ctx, from)
	if err != nil {
		return
	}
	k.tool("tags %s as %s", from, to)
	if err := k.set(k.ctx, to, img.Target); err != nil {
		k.w.wrong(callFailed, "ctr tag: %v", err)
	}
}

// ctrRemove removes a record, as ctr images rm does.
func (k *caller) ctrRemove() {
	ref := k.ref()
	k.tool("removes %s", ref)
	err := k.w.images.Delete(k.ctx, ref)
	if err != nil && !errdefs.IsNotFound(err) {
		k.w.wrong(callFailed, "ctr rm: %v", err)
	}
	if err == nil && k.rng.IntN(2) == 0 {
		k.tool("collects")
		if err := k.w.collect(k.ctx); err != nil {
			k.w.wrong(callFailed, "ctr rm: %v", err)
		}
	}
}
