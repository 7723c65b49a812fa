// Package checker checks a node from outside and reports what is wrong with it.
//
// It implements the labels, records and leases of docs/data-model.md, and reads them through containerd's API. It does
// not use imagepin's code, so that it does not repeat its errors.
package checker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
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
	lockRecord   = "lock"
	keyPrefix    = "io.imagepin.key."
	leaseLabel   = "io.imagepin.lease"
	retainRoot   = "io.imagepin.retain.root"
	extracting   = "extract-" // prefix of the snapshots of containerd's unpacker
)

// Options define what a node may have.
type Options struct {
	// Native is the node's own platform.
	Native string
	// DiscardedLayers allows layers to be absent.
	DiscardedLayers bool
	// Pods allows pods, with their own snapshots and leases.
	Pods bool
	// OtherTools allows pulls by other tools, after which an index keeps the manifests of all platforms that are
	// present.
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
	Damaged     time.Time     `json:"damaged"`
}

func (k key) String() string { return k.Ref + " for " + k.Platform + " on " + k.Snapshotter }

type check struct {
	Options
	ctx   context.Context
	node  *node.Node
	state *node.State

	problems  []string
	keys      map[string]string          // key → record with its label
	tags      map[string][]digest.Digest // tag or image ID → targets of the records of its keys
	images    map[string]bool            // image IDs of keys
	records   map[string]bool            // records, blobs and snapshots that are not leaked
	blobs     map[digest.Digest]bool
	snapshots map[string]bool // snapshotter/name
	writes    map[string]bool // of failed pulls, as namespace/reference
	lock      digest.Digest   // the blob of the node's locks
	locked    map[string]bool // images of the node's locks, as repository@digest
}

// Check collects garbage and returns what is wrong: keys that lack something, and what belongs to no key, pin or pod.
// Nothing may change the node meanwhile.
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
		blobs: map[digest.Digest]bool{}, snapshots: map[string]bool{}, locked: map[string]bool{}, writes: map[string]bool{},
	}
	for name, img := range state.Images {
		ns, name, _ := strings.Cut(name, "/")
		switch ns {
		case node.Namespace:
			c.record(name, img)
		case pinNamespace:
			if name == lockRecord {
				c.locks(img)
			} else {
				c.pin(name, img)
			}
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
			c.wrong("record %s: label %s is invalid: %s", name, label, value)
			continue
		}
		if other, ok := c.keys[k.String()]; ok {
			c.wrong("key %s is on two records: %s and %s", k, other, name)
		}
		c.keys[k.String()] = name
		c.images[k.Image.String()] = true
		c.namesOf(k, name, img.Target)
		known := len(c.problems)
		c.contentOf(k, img.Target)
		if !k.Damaged.IsZero() {
			c.problems = c.problems[:known] // a part of it is gone
		}
	}
}

// namesOf checks the records that a key requires.
func (c *check) namesOf(k key, name string, target ocispec.Descriptor) {
	repo := repository(k.Ref)
	tagged := !strings.Contains(k.Ref, "@")
	native := k.Platform == c.Native
	if !native && target.Digest != k.Manifest {
		c.wrong("key %s: record %s of another platform: got target %s, want manifest %s", k, name, target.Digest, k.Manifest)
	}
	// A key may be on the record of its tag if another tool has removed the record by digest.
	if want := repo + "@" + target.Digest.String(); name != want && (name != k.Ref || !native) {
		c.wrong("key %s: got record %s, want %s", k, name, want)
	}
	need := func(record string) {
		c.records[record] = true
		if _, ok := c.state.Images[node.Namespace+"/"+record]; !ok {
			c.wrong("key %s: no record %s", k, record)
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

// named checks that the record of each tag and image ID has the same digest as one of its keys. The keys of a tag may
// differ, because it is moved for one target after the other.
func (c *check) named() {
	for name, targets := range c.tags {
		if img, ok := c.state.Images[node.Namespace+"/"+name]; ok && !slices.Contains(targets, img.Target.Digest) {
			c.wrong("record %s: got target %s, want one of its keys' %s", name, img.Target.Digest, targets)
		}
	}
}

// untagged allows images with a record of their ID and no key, which containerd's CRI may write late. The CRI must list
// them, so that they can be removed.
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

// contentOf checks the content and the snapshots of a key.
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
		c.wrong("key %s: manifest %s: got configuration %s, want %s", k, k.Manifest, m.Config.Digest, k.Image)
	}
	for _, l := range m.Layers {
		c.blobs[l.Digest] = true
		if _, ok := c.state.Content[node.Namespace+"/"+l.Digest.String()]; !ok && !c.DiscardedLayers {
			c.wrong("key %s: no layer %s", k, l.Digest)
		}
	}
	config, ok := read[ocispec.Image](c, k, "configuration", k.Image)
	if !ok {
		return
	}
	if chain := identity.ChainID(config.RootFS.DiffIDs); chain != k.Chain {
		c.wrong("key %s: configuration %s: got chain ID %s, want %s", k, k.Image, chain, k.Chain)
	}
	for name := k.Chain.String(); name != ""; {
		c.snapshots[k.Snapshotter+"/"+name] = true
		info, ok := c.state.Snapshots[node.Namespace+"/"+k.Snapshotter+"/"+name]
		if !ok || info.Kind != snapshots.KindCommitted {
			c.wrong("key %s: no committed snapshot %s", k, name)
		}
		name = info.Parent
	}
}

// read reads a blob of a key and checks its digest.
func read[T any](c *check, k key, what string, d digest.Digest) (v T, _ bool) {
	c.blobs[d] = true
	b, err := content.ReadBlob(c.ctx, c.node.Client().ContentStore(), ocispec.Descriptor{Digest: d})
	if err != nil {
		c.wrong("key %s: read %s %s: %v", k, what, d, err)
		return v, false
	}
	if digest.FromBytes(b) != d {
		c.wrong("key %s: %s %s: the content has another digest", k, what, d)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		c.wrong("key %s: %s %s: %v", k, what, d, err)
		return v, false
	}
	return v, true
}

// pin checks the record of a pin.
func (c *check) pin(name string, img images.Image) {
	label := func(s string) string { return img.Labels["io.imagepin.pin."+s] }
	if label("version") != "1" || label("scope")+"/"+label("ref") != name || label("by") == "" {
		c.wrong("pin %s: invalid labels %v", name, img.Labels)
	}
	if _, err := time.Parse(time.RFC3339, label("made")); err != nil {
		c.wrong("pin %s: %v", name, err)
	}
	if err := img.Target.Digest.Validate(); err != nil || img.Target.MediaType == "" {
		c.wrong("pin %s: invalid target %v", name, img.Target)
	}
}

// imageOfLock matches an image of a lock.
var imageOfLock = regexp.MustCompile(`(?m)^ *image: (\S+)$`)

// locks checks the record of the node's lock and reads the images of that lock and the one before it.
func (c *check) locks(img images.Image) {
	b, err := content.ReadBlob(namespaces.WithNamespace(c.ctx, pinNamespace), c.node.Client().ContentStore(), img.Target)
	if err != nil || digest.FromBytes(b) != img.Target.Digest {
		c.wrong("the lock %s cannot be read: %v", img.Target.Digest, err)
		return
	}
	type lock struct {
		Lock string `json:"lock"`
	}
	var state struct {
		Version           int `json:"version"`
		Current, Previous *lock
	}
	if err := json.Unmarshal(b, &state); err != nil || state.Version != 1 {
		c.wrong("the lock %s is invalid: %v", img.Target.Digest, err)
	}
	c.lock = img.Target.Digest
	for label, l := range map[string]*lock{"io.imagepin.lock": state.Current, "io.imagepin.lock.previous": state.Previous} {
		want := ""
		if l != nil {
			want = digest.FromString(l.Lock).String()
			for _, m := range imageOfLock.FindAllStringSubmatch(l.Lock, -1) {
				c.locked[m[1]] = true
			}
		}
		if img.Labels[label] != want {
			c.wrong("the record of the lock: got label %s %q, want %q", label, img.Labels[label], want)
		}
	}
}

// leases checks the leases of imagepin and the retained content.
func (c *check) leases() {
	held := make(map[string][]string) // root → retained resources
	var resumes []string
	for id, l := range c.state.Leases {
		switch purpose := l.Labels[leaseLabel]; {
		case purpose == "retain":
			root := l.Labels[retainRoot]
			if !c.retains(root) {
				c.wrong("lease %s retains %s, but no pin does", id, root)
			}
			held[root] = append(held[root], c.state.LeaseResources[id]...)
		case purpose == "resume":
			resumes = append(resumes, id)
		case purpose != "" || !c.Pods:
			c.wrong("lease %s: leaked: %v", id, l.Labels)
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
	// After what is retained: these leases are flat, and hold none of what a blob refers to.
	for _, id := range resumes {
		c.resumed(id, c.state.Leases[id].Labels)
	}
	for name, record := range c.keys {
		for _, value := range c.state.Images[node.Namespace+"/"+record].Labels {
			var k key
			if json.Unmarshal([]byte(value), &k) != nil || k.String() != name || !c.retainsKey(k) {
				continue
			}
			for _, want := range []string{"content " + k.Manifest.String(), "content " + k.Image.String(), "snapshots/" + k.Snapshotter + " " + k.Chain.String()} {
				if !slices.Contains(held[k.Digest.String()], want) {
					c.wrong("key %s: a pin retains it, but no lease has %s", name, want)
				}
			}
		}
	}
}

// resumed marks what a failed pull has fetched as not leaked, for a day.
func (c *check) resumed(id string, labels map[string]string) {
	at, err := time.Parse(time.RFC3339, labels["containerd.io/gc.expire"])
	if _, flat := labels["containerd.io/gc.flat"]; err != nil || !flat || time.Until(at) > 24*time.Hour {
		c.wrong("lease %s of a failed pull: got labels %v, want that it is flat and expires within a day", id, labels)
	}
	for _, r := range c.state.LeaseResources[id] {
		switch kind, name, _ := strings.Cut(r, " "); kind {
		case "content":
			c.blobs[digest.Digest(name)] = true
		case "ingests":
			c.writes[node.Namespace+"/"+name] = true
		default:
			c.wrong("lease %s of a failed pull holds %s", id, r)
		}
	}
}

// retainedBlob marks a retained blob, and what it keeps through containerd's labels, as not leaked. A configuration that a failed pull
// has fetched can keep the label of a snapshot that is gone: its lease is flat.
func (c *check) retainedBlob(d digest.Digest) {
	if c.blobs[d] {
		return
	}
	c.blobs[d] = true
	for label, value := range c.state.Content[node.Namespace+"/"+d.String()].Labels {
		if snapshotter, ok := strings.CutPrefix(label, "containerd.io/gc.ref.snapshot."); ok {
			if _, ok := c.state.Snapshots[node.Namespace+"/"+snapshotter+"/"+value]; ok {
				c.retained(snapshotter, value)
			}
		} else if strings.HasPrefix(label, "containerd.io/gc.ref.content.") {
			c.retainedBlob(digest.Digest(value))
		}
	}
}

// retained marks a retained snapshot and its parents as not leaked.
func (c *check) retained(snapshotter, name string) {
	for name != "" {
		c.snapshots[snapshotter+"/"+name] = true
		info, ok := c.state.Snapshots[node.Namespace+"/"+snapshotter+"/"+name]
		if !ok {
			c.wrong("no retained snapshot %s in %s", name, snapshotter)
		}
		name = info.Parent
	}
}

// retainsKey reports whether a pin of a key's repository retains its digest.
func (c *check) retainsKey(k key) bool {
	for name, img := range c.state.Images {
		ref := img.Labels["io.imagepin.pin.ref"]
		if strings.HasPrefix(name, pinNamespace+"/") && img.Labels["io.imagepin.pin.retain"] == "true" &&
			img.Target.Digest == k.Digest && repository(ref) == repository(k.Ref) {
			return true
		}
	}
	return c.locked[repository(k.Ref)+"@"+k.Digest.String()]
}

// repository returns a reference without its tag or digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// retains reports whether a pin retains a digest.
func (c *check) retains(root string) bool {
	for name, img := range c.state.Images {
		if strings.HasPrefix(name, pinNamespace+"/") && img.Labels["io.imagepin.pin.retain"] == "true" && img.Target.Digest.String() == root {
			return true
		}
	}
	for image := range c.locked {
		if strings.HasSuffix(image, "@"+root) {
			return true
		}
	}
	return false
}

// leaks checks that everything on the node belongs to a key, pin or pod.
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
			c.wrong("record %s: leaked", name)
		}
	}
	for name := range c.state.Content {
		if ns, d, _ := strings.Cut(name, "/"); !(ns == pinNamespace && digest.Digest(d) == c.lock) && (ns != node.Namespace || !c.blobs[digest.Digest(d)]) {
			c.wrong("content %s: leaked", name)
		}
	}
	for name, info := range c.state.Snapshots {
		ns, snapshot, _ := strings.Cut(name, "/")
		_, key, _ := strings.Cut(snapshot, "/")
		pods := c.Pods && info.Kind == snapshots.KindActive && !strings.HasPrefix(key, extracting)
		if !pods && (ns != node.Namespace || !c.snapshots[snapshot]) {
			c.wrong("snapshot %s (%s): leaked", name, info.Kind)
		}
	}
	for name := range c.state.Ingests {
		if !c.writes[name] {
			c.wrong("ingest %s: leaked", name)
		}
	}
}

// listed checks that the CRI lists exactly the images of keys and untagged images.
func (c *check) listed() error {
	resp, err := c.node.Images().ListImages(c.ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	seen := make(map[string]bool)
	for _, img := range resp.GetImages() {
		seen[img.GetId()] = true
		if !c.images[img.GetId()] {
			c.wrong("the CRI lists image %s %s without a key", img.GetId(), img.GetRepoTags())
		}
	}
	for id := range c.images {
		if !seen[id] {
			c.wrong("the CRI does not list image %s", id)
		}
	}
	return nil
}
