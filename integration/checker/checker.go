// Package checker looks at a node from outside and says what is wrong with it.
//
// It knows what docs/data-model.md says of labels, records and leases, and reads them through containerd's own API. Of
// imagepin's code it knows nothing, so that an error there is not repeated here.
package checker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
)

const (
	pinNamespace = "imagepin"
	keyPrefix    = "io.imagepin.key."
	leaseLabel   = "io.imagepin.lease"
	retainRoot   = "io.imagepin.retain.root"
	extracting   = "extract-" // begins the snapshots of containerd's unpacker
)

// Options say what a node may have.
type Options struct {
	// Native is the node's own platform.
	Native string
	// DiscardedLayers says that layers need not be there.
	DiscardedLayers bool
	// Pods says that there may be pods, with snapshots and leases of their own.
	Pods bool
	// OtherTools says that other tools have pulled: they let an index keep the manifests of all platforms, as far as they are here.
	OtherTools bool
}

// key is the value of a key's label.
type key struct {
	Version     int           `json:"v"`
	Ref         string        `json:"ref"`
	Platform    string        `json:"platform"`
	Snapshotter string        `json:"snapshotter"`
	Digest      digest.Digest `json:"digest"`
	Manifest    digest.Digest `json:"manifest"`
	Image       digest.Digest `json:"image"`
	Chain       digest.Digest `json:"chain"`
	Ready       time.Time     `json:"ready"`
}

func (k key) String() string { return k.Ref + " for " + k.Platform + " on " + k.Snapshotter }

type check struct {
	Options
	ctx   context.Context
	node  *node.Node
	state *node.State

	problems  []string
	keys      map[string]string          // key → record that carries it
	tags      map[string][]digest.Digest // tag or image ID → targets of the records of its keys
	images    map[string]bool            // image IDs of keys
	records   map[string]bool            // what keys account for …
	blobs     map[digest.Digest]bool
	snapshots map[string]bool // snapshotter/name
}

// Check collects the node's garbage and gives what is wrong then: keys that lack something, and what no key, pin or pod accounts for. Nobody
// must change the node meanwhile.
func Check(ctx context.Context, n *node.Node, opts Options) ([]string, error) {
	if err := n.GC(ctx); err != nil {
		return nil, err
	}
	state, err := n.State(ctx)
	if err != nil {
		return nil, err
	}
	c := &check{
		Options: opts, ctx: namespaces.WithNamespace(ctx, node.Namespace), node: n, state: state,
		keys: map[string]string{}, tags: map[string][]digest.Digest{}, images: map[string]bool{}, records: map[string]bool{},
		blobs: map[digest.Digest]bool{}, snapshots: map[string]bool{},
	}
	for name, img := range state.Images {
		ns, name, _ := strings.Cut(name, "/")
		switch ns {
		case node.Namespace:
			c.record(name, img)
		case pinNamespace:
			c.pin(name, img)
		}
	}
	c.named()
	c.untagged()
	c.leases()
	c.leaks()
	if err := c.listed(); err != nil {
		return nil, err
	}
	slices.Sort(c.problems)
	return c.problems, nil
}

func (c *check) wrong(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// record checks the keys on a record.
func (c *check) record(name string, img images.Image) {
	for label, value := range img.Labels {
		if !strings.HasPrefix(label, keyPrefix) {
			continue
		}
		var k key
		if err := json.Unmarshal([]byte(value), &k); err != nil || k.Version != 1 || k.Ref == "" || k.Ready.IsZero() {
			c.wrong("record %s: label %s cannot be read: %s", name, label, value)
			continue
		}
		if other, ok := c.keys[k.String()]; ok {
			c.wrong("key %s is on two records: %s and %s", k, other, name)
		}
		c.keys[k.String()] = name
		c.images[k.Image.String()] = true
		c.namesOf(k, name, img.Target)
		c.contentOf(k, img.Target)
	}
}

// namesOf checks the records that come with a key.
func (c *check) namesOf(k key, name string, target ocispec.Descriptor) {
	repo := repository(k.Ref)
	tagged := !strings.Contains(k.Ref, "@")
	native := k.Platform == c.Native
	if !native && target.Digest != k.Manifest {
		c.wrong("key %s: record %s of another platform targets %s, not its manifest %s", k, name, target.Digest, k.Manifest)
	}
	// A tag may carry a key itself, where another tool has removed the other record.
	if want := repo + "@" + target.Digest.String(); name != want && (name != k.Ref || !native) {
		c.wrong("key %s is on record %s, not on %s", k, name, want)
	}
	need := func(record string) {
		c.records[record] = true
		if _, ok := c.state.Images[node.Namespace+"/"+record]; !ok {
			c.wrong("key %s: there is no record %s", k, record)
		}
	}
	need(name)
	need(k.Image.String())
	c.tags[k.Image.String()] = append(c.tags[k.Image.String()], target.Digest)
	if tagged && native {
		need(k.Ref)
		c.tags[k.Ref] = append(c.tags[k.Ref], target.Digest)
	}
}

// named checks that tags and image IDs mean what one of their keys does: a tag is moved for one target after the other.
func (c *check) named() {
	for name, targets := range c.tags {
		if img, ok := c.state.Images[node.Namespace+"/"+name]; ok && !slices.Contains(targets, img.Target.Digest) {
			c.wrong("record %s targets %s, and its keys are of %s", name, img.Target.Digest, targets)
		}
	}
}

// untagged accounts for the images that have a record of their ID and no key, which containerd's CRI may write late. CRI has to list them, so that
// they can be removed.
func (c *check) untagged() {
	for name, img := range c.state.Images {
		ns, record, _ := strings.Cut(name, "/")
		if _, err := digest.Parse(record); ns != node.Namespace || err != nil || c.images[record] {
			continue
		}
		c.records[record], c.images[record] = true, true
		c.retainedBlob(img.Target.Digest)
	}
}

// contentOf checks what a key needs to run.
func (c *check) contentOf(k key, target ocispec.Descriptor) {
	if target.Digest != k.Manifest {
		index, ok := read[ocispec.Index](c, k, "index", target.Digest)
		if ok && !slices.ContainsFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == k.Manifest }) {
			c.wrong("key %s: index %s has no manifest %s", k, target.Digest, k.Manifest)
		}
	}
	m, ok := read[ocispec.Manifest](c, k, "manifest", k.Manifest)
	if !ok {
		return
	}
	if m.Config.Digest != k.Image {
		c.wrong("key %s: manifest %s has configuration %s, not %s", k, k.Manifest, m.Config.Digest, k.Image)
	}
	for _, l := range m.Layers {
		c.blobs[l.Digest] = true
		if _, ok := c.state.Content[node.Namespace+"/"+l.Digest.String()]; !ok && !c.DiscardedLayers {
			c.wrong("key %s: layer %s is gone", k, l.Digest)
		}
	}
	config, ok := read[ocispec.Image](c, k, "configuration", k.Image)
	if !ok {
		return
	}
	if chain := identity.ChainID(config.RootFS.DiffIDs); chain != k.Chain {
		c.wrong("key %s: its snapshot is %s, not %s", k, chain, k.Chain)
	}
	for name := k.Chain.String(); name != ""; {
		c.snapshots[k.Snapshotter+"/"+name] = true
		info, ok := c.state.Snapshots[node.Namespace+"/"+k.Snapshotter+"/"+name]
		if !ok || info.Kind != snapshots.KindCommitted {
			c.wrong("key %s: snapshot %s is not there and committed", k, name)
		}
		name = info.Parent
	}
}

// read reads a blob of a key, which has to be what its digest says.
func read[T any](c *check, k key, what string, d digest.Digest) (v T, _ bool) {
	c.blobs[d] = true
	b, err := content.ReadBlob(c.ctx, c.node.Client().ContentStore(), ocispec.Descriptor{Digest: d})
	if err != nil {
		c.wrong("key %s: its %s %s cannot be read: %v", k, what, d, err)
		return v, false
	}
	if digest.FromBytes(b) != d {
		c.wrong("key %s: its %s %s has other content", k, what, d)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		c.wrong("key %s: its %s %s: %v", k, what, d, err)
		return v, false
	}
	return v, true
}

// pin checks a record of a pin.
func (c *check) pin(name string, img images.Image) {
	label := func(s string) string { return img.Labels["io.imagepin.pin."+s] }
	if label("version") != "1" || label("scope")+"/"+label("ref") != name || label("by") == "" {
		c.wrong("pin %s has labels %v", name, img.Labels)
	}
	if _, err := time.Parse(time.RFC3339, label("made")); err != nil {
		c.wrong("pin %s: %v", name, err)
	}
	if err := img.Target.Digest.Validate(); err != nil || img.Target.MediaType == "" {
		c.wrong("pin %s targets %v", name, img.Target)
	}
}

// leases checks those of imagepin, and what pins retain.
func (c *check) leases() {
	held := make(map[string][]string) // what is retained, by root
	for id, l := range c.state.Leases {
		switch purpose := l.Labels[leaseLabel]; {
		case purpose == "retain":
			root := l.Labels[retainRoot]
			if !c.retains(root) {
				c.wrong("lease %s retains %s, which no pin does", id, root)
			}
			held[root] = append(held[root], c.state.LeaseResources[id]...)
		case purpose != "" || !c.Pods:
			c.wrong("lease %s is left: %v", id, l.Labels)
		}
	}
	for _, resources := range held {
		for _, r := range resources {
			kind, id, _ := strings.Cut(r, " ")
			if snapshotter, ok := strings.CutPrefix(kind, "snapshots/"); ok {
				c.retained(snapshotter, id)
			} else {
				c.retainedBlob(digest.Digest(id))
			}
		}
	}
	for name, record := range c.keys {
		for _, value := range c.state.Images[node.Namespace+"/"+record].Labels {
			var k key
			if json.Unmarshal([]byte(value), &k) != nil || k.String() != name || !c.retainsKey(k) {
				continue
			}
			for _, want := range []string{"content " + k.Manifest.String(), "content " + k.Image.String(), "snapshots/" + k.Snapshotter + " " + k.Chain.String()} {
				if !slices.Contains(held[k.Digest.String()], want) {
					c.wrong("key %s: a pin retains it, but no lease holds %s", name, want)
				}
			}
		}
	}
}

// retainedBlob accounts for a blob that is retained, and for what it keeps by containerd's own labels.
func (c *check) retainedBlob(d digest.Digest) {
	if c.blobs[d] {
		return
	}
	c.blobs[d] = true
	for label, value := range c.state.Content[node.Namespace+"/"+d.String()].Labels {
		if snapshotter, ok := strings.CutPrefix(label, "containerd.io/gc.ref.snapshot."); ok {
			c.retained(snapshotter, value)
		} else if strings.HasPrefix(label, "containerd.io/gc.ref.content.") {
			c.retainedBlob(digest.Digest(value))
		}
	}
}

func (c *check) retained(snapshotter, name string) {
	for name != "" {
		c.snapshots[snapshotter+"/"+name] = true
		info, ok := c.state.Snapshots[node.Namespace+"/"+snapshotter+"/"+name]
		if !ok {
			c.wrong("snapshot %s in %s is retained, but gone", name, snapshotter)
		}
		name = info.Parent
	}
}

// retainsKey tells whether a pin of a key's repository retains what it means.
func (c *check) retainsKey(k key) bool {
	for name, img := range c.state.Images {
		ref := img.Labels["io.imagepin.pin.ref"]
		if strings.HasPrefix(name, pinNamespace+"/") && img.Labels["io.imagepin.pin.retain"] == "true" &&
			img.Target.Digest == k.Digest && repository(ref) == repository(k.Ref) {
			return true
		}
	}
	return false
}

// repository is a reference without its tag or digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// retains tells whether a pin retains a digest.
func (c *check) retains(root string) bool {
	for name, img := range c.state.Images {
		if strings.HasPrefix(name, pinNamespace+"/") && img.Labels["io.imagepin.pin.retain"] == "true" && img.Target.Digest.String() == root {
			return true
		}
	}
	return false
}

// leaks finds what nothing accounts for.
func (c *check) leaks() {
	if c.OtherTools {
		for _, d := range slices.Collect(maps.Keys(c.blobs)) {
			delete(c.blobs, d)
			c.retainedBlob(d)
		}
	}
	for name := range c.state.Images {
		ns, record, _ := strings.Cut(name, "/")
		if ns != pinNamespace && !(ns == node.Namespace && c.records[record]) {
			c.wrong("record %s: no key accounts for it", name)
		}
	}
	for name := range c.state.Content {
		if ns, d, _ := strings.Cut(name, "/"); ns != node.Namespace || !c.blobs[digest.Digest(d)] {
			c.wrong("content %s: no key accounts for it", name)
		}
	}
	for name, info := range c.state.Snapshots {
		ns, snapshot, _ := strings.Cut(name, "/")
		_, key, _ := strings.Cut(snapshot, "/")
		pods := c.Pods && info.Kind == snapshots.KindActive && !strings.HasPrefix(key, extracting)
		if !pods && (ns != node.Namespace || !c.snapshots[snapshot]) {
			c.wrong("snapshot %s (%s): no key accounts for it", name, info.Kind)
		}
	}
	for name := range c.state.Ingests {
		c.wrong("ingest %s is left", name)
	}
}

// listed checks that CRI lists what there are keys of, and nothing else.
func (c *check) listed() error {
	resp, err := c.node.Images().ListImages(c.ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, img := range resp.GetImages() {
		seen[img.GetId()] = true
		if !c.images[img.GetId()] {
			c.wrong("CRI lists image %s %s, which no record has a key of", img.GetId(), img.GetRepoTags())
		}
	}
	for id := range c.images {
		if !seen[id] {
			c.wrong("CRI does not list image %s, which there are keys of", id)
		}
	}
	return nil
}
