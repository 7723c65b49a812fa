package sim

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/imageverifier"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
)

// verifiers returns the image verifier plugins of a process: one if the history has a build that is rejected.
func (w *world) verifiers(owner *process) map[string]imageverifier.ImageVerifier {
	if w.choice.refuse == "" {
		return nil
	}
	return map[string]imageverifier.ImageVerifier{"verifier": verifier{w, owner}}
}

// verifier rejects one build. The seed decides how late.
type verifier struct {
	w     *world
	owner *process
}

func (v verifier) VerifyImage(ctx context.Context, name string, desc ocispec.Descriptor) (*imageverifier.Judgement, error) {
	if err := v.w.step(ctx, v.owner, "verifier: %s of %s", desc.Digest, name); err != nil {
		return nil, err
	}
	refused := v.w.registry.named(v.w.choice.refuse)
	return &imageverifier.Judgement{OK: desc.Digest != refused.root.Digest, Reason: "the history refuses it"}, nil
}

// refused finds keys and pins of the build that the verifier rejects.
func (c *check) refused() {
	if c.w.choice.refuse == "" || c.w.facts.otherTools.Load() {
		return // an image that another tool has pulled is adopted, and pods may use it
	}
	root := c.w.registry.named(c.w.choice.refuse).root.Digest
	for _, name := range sorted(c.Keys) {
		if c.Keys[name].Digest == root {
			c.w.wrong(rejectedUsed, "key %s has %s, which the verifier rejects", name, root)
		}
	}
	for _, name := range sorted(c.Pins) {
		if c.Pins[name].Target.Digest == root && !c.w.facts.unpinned.Load() {
			c.w.wrong(rejectedUsed, "pin %s has %s, which the verifier rejects", name, root)
		}
	}
}

// activePins checks that the pins that imagepin applies are those that it has recorded.
func (c *check) activePins(ctx context.Context) {
	resp, err := call[*api.PinsResponse](ctx, c.w.proc, control, "Pins", &api.PinsRequest{})
	if err != nil {
		c.w.wrong(callFailed, "Pins: %v", err)
		return
	}
	active := make(map[string]string)
	for _, p := range resp.GetPins() {
		if p.GetScope() == lockRecord {
			continue // see activeLock
		}
		name := p.GetScope() + "/" + p.GetRef()
		active[name] = p.GetRoot().GetDigest()
		if _, ok := c.Pins[name]; !ok {
			c.w.wrong(pinsWrong, "pin %s has %s, but no record", name, active[name])
		}
	}
	for _, name := range sorted(c.Pins) {
		if want := c.Pins[name].Target.Digest.String(); active[name] != want {
			c.w.wrong(pinsWrong, "the record of pin %s has %s, but the active pin %q", name, want, active[name])
		}
	}
}

// pinsOfContainers finds missing pins of containers, and namespaces that exceed their limit of pins.
func (c *check) pinsOfContainers() {
	if c.w.choice.consistency != "workload" {
		return
	}
	for _, o := range c.w.facts.ops {
		if !o.wasPinned || c.w.facts.unpinned.Load() || !c.w.cri.has(o.container) {
			continue
		}
		if _, ok := c.Pins[o.scope+"/"+o.ref]; !ok {
			c.w.wrong(pinLost, "%s was created with pin %s/%s, which is missing", o.container, o.scope, o.ref)
		}
	}
	pins := make(map[string]int)
	for name := range c.Pins {
		if rest, ok := strings.CutPrefix(name, "workload/"); ok {
			namespace, _, _ := strings.Cut(rest, "/")
			pins[namespace]++
		}
	}
	for _, namespace := range sorted(pins) {
		if n := pins[namespace]; c.w.choice.cap > 0 && n > c.w.choice.cap {
			c.w.wrong(pinsTooMany, "namespace %s has %d pins, want at most %d", namespace, n, c.w.choice.cap)
		}
	}
}

// tagsMovedBack finds tags that a pull for a pinned workload has moved back, after an unpinned pull had moved them to
// the digest in the registry.
func (c *check) tagsMovedBack() {
	f := &c.w.facts
	if c.w.choice.consistency != "workload" || f.unpinned.Load() || f.refreshed.Load() || f.otherTools.Load() ||
		!slices.Contains([]string{"default", "always"}, c.w.choice.behavior) || c.w.registry.failedSince(0) {
		return
	}
	for _, name := range sorted(c.Keys) {
		k := c.Keys[name]
		now := c.w.registry.tag(k.Ref)
		if now == nil || k.Digest == now.root.Digest {
			continue
		}
		if _, by := f.movedByCRI.Load(k.Ref); by {
			continue
		}
		moved := c.w.registry.moved[k.Ref]
		for _, o := range f.ops {
			platform, sn := c.w.target(o.handler)
			if o.method != "PullImage" || o.ref != k.Ref || o.scope != "" || platform != k.Platform || sn != k.Snapshotter ||
				!o.ended || o.err != nil || o.start <= moved || f.spans(k.Ref, moved, o.start) {
				continue
			}
			c.w.wrong(tagMovedByPin, "key %s has %s, but the unpinned pull of %s moved it to %s", name, k.Digest, o.actor, now.root.Digest)
			break
		}
	}
}

// spans reports whether a call for a reference began at or before one step, and ended at or after another.
func (f *facts) spans(ref string, before, until int) bool {
	return slices.ContainsFunc(f.ops, func(o *op) bool {
		return o.ref == ref && o.start <= before && (!o.ended || o.end >= until)
	})
}
