// Package invariants checks what must hold on a node while nothing changes it: each key has what it needs, and the node has nothing else.
//
// It implements the labels, records and leases of docs/data-model.md. It does not use imagepin's code, so that it does not repeat its
// errors. The simulator and the integration tests use it, each with a [State] that it has read in its own way.
package invariants

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The names of the invariants, which are also the names of problems.
const (
	KeyUnreadable    = "key-unreadable"
	KeyTwice         = "key-on-two-records"
	KeyNoRecord      = "key-without-record"
	KeyNoContent     = "key-without-content"
	KeyNoLayer       = "key-without-layer"
	KeyNoSnapshot    = "key-without-snapshot"
	KeyWrong         = "key-inconsistent"
	TagMismatch      = "tag-or-id-has-another-digest"
	LeakedRecord     = "record-leaked"
	LeakedContent    = "content-leaked"
	LeakedSnapshot   = "snapshot-leaked"
	LeakedIngest     = "ingest-leaked"
	LeakedLease      = "lease-leaked"
	RetentionLost    = "retention-lost"
	RetainedUnpinned = "retained-without-pin"
	ListWrong        = "list-disagrees-with-keys"
)

// State is what a node has, in containerd's namespace of the CRI.
type State struct {
	Images    map[string]images.Image // by name
	Pins      map[string]images.Image // the records of pins, in their own namespace
	Content   map[digest.Digest]content.Info
	Ingests   []string                  // references
	Snapshots map[string]snapshots.Info // by snapshotter/name
	Leases    map[string]leases.Lease
	Resources map[string][]leases.Resource // of the leases
	// Locked are the digests of the images of the node's locks.
	Locked map[digest.Digest]bool
	Read   func(digest.Digest) ([]byte, error)
}

// Options define what a node may have.
type Options struct {
	// Native is the node's own platform.
	Native string
	// Damaged allows keys that are marked as damaged: a part of their image is gone.
	Damaged bool
	// DiscardedLayers allows layers to be absent.
	DiscardedLayers bool
	// Pods allows pods, with their own leases.
	Pods bool
	// OtherTools allows pulls by other tools, after which an index keeps the manifests of all platforms that are present.
	OtherTools bool
	// OtherTags allows tags that other tools have moved to an image that is not adopted, or is gone.
	OtherTags bool
	// ExactPlatforms requires that the configuration of an image has the platform of its keys.
	ExactPlatforms bool
}

// Key is the value of a key's label.
type Key struct {
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

func (k Key) String() string { return k.Ref + " for " + k.Platform + " on " + k.Snapshotter }

// Problem is an invariant that does not hold.
type Problem struct{ Invariant, Text string }

// Check checks a state. Between [New] and [Check.Finish], the caller accounts for what the node may have besides its keys, pins and
// leases.
type Check struct {
	State
	Options
	problems []Problem
	Keys     map[string]Key
	Tags     map[string][]digest.Digest // tag or image ID → targets of the records of its keys
	IDs      map[string]bool            // image IDs that the CRI has to list: those of keys
	Records  map[string]bool            // records that are accounted for
	Used     map[string]bool            // snapshots that are accounted for

	record  map[string]string // key → record with its label
	allowed map[string]bool   // image IDs that the CRI may list
	blobs   map[digest.Digest]bool
	writes  map[string]bool // of failed pulls
}

// New checks the keys of a state.
func New(s State, o Options) *Check {
	c := &Check{
		State: s, Options: o, Keys: map[string]Key{}, Tags: map[string][]digest.Digest{}, IDs: map[string]bool{}, Records: map[string]bool{},
		Used: map[string]bool{}, record: map[string]string{}, allowed: map[string]bool{}, blobs: map[digest.Digest]bool{}, writes: map[string]bool{},
	}
	for _, name := range sorted(c.Images) {
		c.keys(name, c.Images[name])
	}
	c.named()
	return c
}

// Finish checks the leases, and that everything is accounted for. It returns all problems.
func (c *Check) Finish() []Problem {
	c.leases()
	c.leaks()
	return c.problems
}

// AllowImage accounts for an image without a key: the record with its ID and other records of its names. The CRI may list it.
func (c *Check) AllowImage(id string, names ...string) {
	c.allowed[id] = true
	for _, name := range append(names, id) {
		c.Records[name] = true
		c.useBlob(c.Images[name].Target.Digest)
	}
}

func sorted[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func (c *Check) wrong(invariant, format string, args ...any) {
	c.problems = append(c.problems, Problem{invariant, fmt.Sprintf(format, args...)})
}

// keys checks the keys on a record.
func (c *Check) keys(name string, img images.Image) {
	for _, label := range sorted(img.Labels) {
		if !strings.HasPrefix(label, "io.imagepin.key.") {
			continue
		}
		var k Key
		if err := json.Unmarshal([]byte(img.Labels[label]), &k); err != nil || k.Version != 1 || k.Ref == "" || k.Ready.IsZero() {
			c.wrong(KeyUnreadable, "record %s: label %s is invalid: %s", name, label, img.Labels[label])
			continue
		}
		if other, ok := c.record[k.String()]; ok {
			c.wrong(KeyTwice, "key %s is on two records: %s and %s", k, other, name)
		}
		c.Keys[k.String()], c.record[k.String()], c.IDs[k.Image.String()] = k, name, true
		c.names(k, name, img.Target)
		known := len(c.problems)
		c.contentOf(k, img.Target)
		if c.Damaged && !k.Damaged.IsZero() {
			c.problems = c.problems[:known]
		}
	}
}

// names checks the records that a key requires.
func (c *Check) names(k Key, name string, target ocispec.Descriptor) {
	native := k.Platform == c.Native
	if !native && target.Digest != k.Manifest {
		c.wrong(KeyWrong, "key %s: record %s of another platform: got target %s, want manifest %s", k, name, target.Digest, k.Manifest)
	}
	// A key may be on the record of its tag if another tool has removed the record by digest.
	if want := repository(k.Ref) + "@" + target.Digest.String(); name != want && (name != k.Ref || !native) {
		c.wrong(KeyWrong, "key %s: got record %s, want %s", k, name, want)
	}
	need := func(record string) {
		c.Records[record] = true
		if _, ok := c.Images[record]; !ok {
			c.wrong(KeyNoRecord, "key %s: no record %s", k, record)
		}
	}
	need(name)
	need(k.Image.String())
	c.Tags[k.Image.String()] = append(c.Tags[k.Image.String()], target.Digest)
	if native && !strings.Contains(k.Ref, "@") {
		need(k.Ref)
		c.Tags[k.Ref] = append(c.Tags[k.Ref], target.Digest)
	}
}

// named checks that the record of each tag and image ID has the same digest as one of its keys. The keys of a tag may differ, because it
// is moved for one target after the other.
func (c *Check) named() {
	for _, name := range sorted(c.Tags) {
		img, ok := c.Images[name]
		if !ok || slices.Contains(c.Tags[name], img.Target.Digest) {
			continue
		}
		if _, err := digest.Parse(name); err != nil && c.OtherTags {
			c.useBlob(img.Target.Digest)
			continue
		}
		c.wrong(TagMismatch, "record %s: got target %s, want one of its keys' %s", name, img.Target.Digest, c.Tags[name])
	}
}

// contentOf checks the content and the snapshots of a key.
func (c *Check) contentOf(k Key, target ocispec.Descriptor) {
	if target.Digest != k.Manifest {
		index, ok := read[ocispec.Index](c, k, "index", target.Digest)
		if ok && !slices.ContainsFunc(index.Manifests, func(d ocispec.Descriptor) bool { return d.Digest == k.Manifest }) {
			c.wrong(KeyWrong, "key %s: index %s has no manifest %s", k, target.Digest, k.Manifest)
		}
	}
	m, ok := read[ocispec.Manifest](c, k, "manifest", k.Manifest)
	if !ok {
		return
	}
	if m.Config.Digest != k.Image {
		c.wrong(KeyWrong, "key %s: manifest %s: got configuration %s, want %s", k, k.Manifest, m.Config.Digest, k.Image)
	}
	for _, l := range m.Layers {
		c.blobs[l.Digest] = true
		if _, ok := c.Content[l.Digest]; !ok && !c.DiscardedLayers {
			c.wrong(KeyNoLayer, "key %s: no layer %s", k, l.Digest)
		}
	}
	config, ok := read[ocispec.Image](c, k, "configuration", k.Image)
	if !ok {
		return
	}
	if of := platforms.Format(config.Platform); of != k.Platform && c.ExactPlatforms {
		c.wrong(KeyWrong, "key %s: configuration %s has platform %s", k, k.Image, of)
	}
	if chain := identity.ChainID(slices.Clone(config.RootFS.DiffIDs)); chain != k.Chain {
		c.wrong(KeyWrong, "key %s: configuration %s: got chain ID %s, want %s", k, k.Image, chain, k.Chain)
	}
	for name := k.Chain.String(); name != ""; {
		c.Used[k.Snapshotter+"/"+name] = true
		info, ok := c.Snapshots[k.Snapshotter+"/"+name]
		if !ok || info.Kind != snapshots.KindCommitted {
			c.wrong(KeyNoSnapshot, "key %s: no committed snapshot %s", k, name)
		}
		name = info.Parent
	}
}

// read reads a blob of a key and checks its digest.
func read[T any](c *Check, k Key, what string, d digest.Digest) (v T, _ bool) {
	c.blobs[d] = true
	b, err := c.Read(d)
	if err == nil && digest.FromBytes(b) != d {
		err = fmt.Errorf("the content has another digest")
	}
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		c.wrong(KeyNoContent, "key %s: read %s %s: %v", k, what, d, err)
	}
	return v, err == nil
}

// repository returns a reference without its tag or digest.
func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

// retains reports whether a pin of a repository, or of any if it is empty, retains a digest, or a lock does.
func (c *Check) retains(root digest.Digest, repo string) bool {
	for _, p := range c.Pins {
		if p.Labels["io.imagepin.pin.retain"] == "true" && p.Target.Digest == root && (repo == "" || repository(p.Labels["io.imagepin.pin.ref"]) == repo) {
			return true
		}
	}
	return c.Locked[root]
}

// leases checks the leases of imagepin and the retained content.
func (c *Check) leases() {
	held := make(map[digest.Digest]map[leases.Resource]bool) // of a root
	var resumes []string
	for _, id := range sorted(c.Leases) {
		switch l := c.Leases[id]; l.Labels["io.imagepin.lease"] {
		case "retain":
			root := digest.Digest(l.Labels["io.imagepin.retain.root"])
			if !c.retains(root, "") {
				c.wrong(RetainedUnpinned, "lease %s retains %s, but no pin does", id, root)
			}
			if held[root] == nil {
				held[root] = make(map[leases.Resource]bool)
			}
			for _, r := range c.Resources[id] {
				held[root][r] = true
				if snapshotter, ok := strings.CutPrefix(r.Type, "snapshots/"); ok {
					c.UseSnapshot(snapshotter, r.ID)
				} else {
					c.useBlob(digest.Digest(r.ID))
				}
			}
		case "resume":
			resumes = append(resumes, id)
		case "":
			if c.Pods {
				continue
			}
			fallthrough
		default:
			c.wrong(LeakedLease, "lease %s: leaked: %v, %v", id, l.Labels, c.Resources[id])
		}
	}
	// After what is retained: these leases are flat, and hold none of what a blob refers to.
	for _, id := range resumes {
		c.resumed(id, c.Leases[id].Labels)
	}
	for _, name := range sorted(c.Keys) {
		k := c.Keys[name]
		if !c.retains(k.Digest, repository(k.Ref)) {
			continue
		}
		wants := []leases.Resource{{Type: "content", ID: k.Manifest.String()}, {Type: "content", ID: k.Image.String()}}
		if k.Chain != "" {
			wants = append(wants, leases.Resource{Type: "snapshots/" + k.Snapshotter, ID: k.Chain.String()})
		}
		for _, want := range wants {
			if !held[k.Digest][want] {
				c.wrong(RetentionLost, "key %s: a pin retains it, but no lease has %s %s", name, want.Type, want.ID)
			}
		}
	}
}

// resumed accounts for what a failed pull has fetched, for a day.
func (c *Check) resumed(id string, labels map[string]string) {
	at, err := time.Parse(time.RFC3339, labels["containerd.io/gc.expire"])
	if _, flat := labels["containerd.io/gc.flat"]; err != nil || !flat || time.Until(at) > 24*time.Hour {
		c.wrong(LeakedLease, "lease %s of a failed pull: got labels %v, want that it is flat and expires within a day", id, labels)
	}
	for _, r := range c.Resources[id] {
		switch r.Type {
		case "content":
			c.blobs[digest.Digest(r.ID)] = true
		case "ingests":
			c.writes[r.ID] = true
		default:
			c.wrong(LeakedLease, "lease %s of a failed pull holds %s", id, r)
		}
	}
}

// useBlob accounts for a blob, and for what it keeps through containerd's labels.
func (c *Check) useBlob(d digest.Digest) {
	if !c.blobs[d] {
		c.blobs[d] = true
		c.useChildren(d)
	}
}

// useChildren accounts for what a blob keeps. A configuration that a failed pull has fetched can keep the label of a snapshot that is
// gone: its lease is flat.
func (c *Check) useChildren(d digest.Digest) {
	labels := c.Content[d].Labels
	for _, label := range sorted(labels) {
		value := labels[label]
		if snapshotter, ok := strings.CutPrefix(label, "containerd.io/gc.ref.snapshot."); ok {
			if _, ok := c.Snapshots[snapshotter+"/"+value]; ok {
				c.UseSnapshot(snapshotter, value)
			}
		} else if strings.HasPrefix(label, "containerd.io/gc.ref.content.") {
			c.useBlob(digest.Digest(value))
		}
	}
}

// UseSnapshot accounts for a snapshot and those below it.
func (c *Check) UseSnapshot(snapshotter, name string) {
	for name != "" {
		c.Used[snapshotter+"/"+name] = true
		info, ok := c.Snapshots[snapshotter+"/"+name]
		if !ok {
			c.wrong(RetentionLost, "no retained snapshot %s in %s", name, snapshotter)
		}
		name = info.Parent
	}
}

// leaks checks that everything is accounted for.
func (c *Check) leaks() {
	if c.OtherTools {
		for _, d := range sorted(c.blobs) {
			c.useChildren(d)
		}
	}
	for _, name := range sorted(c.Images) {
		target := c.Images[name].Target.Digest
		if _, here := c.Content[target]; !c.Records[name] && (here || !c.OtherTags) {
			c.wrong(LeakedRecord, "record %s of %s: leaked", name, target)
		}
	}
	for _, d := range sorted(c.Content) {
		if !c.blobs[d] {
			c.wrong(LeakedContent, "content %s: leaked", d)
		}
	}
	for _, name := range sorted(c.Snapshots) {
		if !c.Used[name] {
			c.wrong(LeakedSnapshot, "snapshot %s (%s): leaked", name, c.Snapshots[name].Kind)
		}
	}
	for _, ref := range c.Ingests {
		if !c.writes[ref] {
			c.wrong(LeakedIngest, "ingest %s: leaked", ref)
		}
	}
}

// Listed checks that the CRI lists exactly the images of keys, and what is allowed besides. It returns the problems.
func (c *Check) Listed(all []*cri.Image) []Problem {
	c.problems = nil
	seen := make(map[string]bool)
	for _, img := range all {
		seen[img.GetId()] = true
		if !c.IDs[img.GetId()] && !c.allowed[img.GetId()] {
			c.wrong(ListWrong, "the CRI lists image %s %s without a key", img.GetId(), img.GetRepoTags())
		}
	}
	for _, id := range sorted(c.IDs) {
		if !seen[id] {
			c.wrong(ListWrong, "the CRI does not list image %s", id)
		}
	}
	return c.problems
}
