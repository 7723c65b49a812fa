package sim

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The names of the invariants, which are also the names of problems.
const (
	keyUnreadable    = "key-unreadable"
	keyTwice         = "key-on-two-records"
	keyNoRecord      = "key-without-record"
	keyNoContent     = "key-without-content"
	keyNoLayer       = "key-without-layer"
	keyNoSnapshot    = "key-without-snapshot"
	keyWrong         = "key-inconsistent"
	tagMismatch      = "tag-or-id-has-another-digest"
	leakedRecord     = "record-leaked"
	leakedContent    = "content-leaked"
	leakedSnapshot   = "snapshot-leaked"
	leakedIngest     = "ingest-leaked"
	leakedLease      = "lease-leaked"
	retentionLost    = "retention-lost"
	retainedUnpinned = "retained-without-pin"
	listWrong        = "list-disagrees-with-keys"
	statusWrong      = "status-disagrees-with-keys"
	statusWrote      = "read-wrote"
	callFailed       = "call-failed"
	callDeadline     = "call-deadline-exceeded"
	callSlow         = "call-waits-for-a-collection"
	callDripped      = "call-waits-for-a-slow-registry"
	callUnanswered   = "call-unanswered"
	notVisible       = "pull-not-visible"
	notRunnable      = "pulled-image-cannot-be-run"
	removedInUse     = "removed-while-in-use"
	otherImage       = "container-of-another-image"
	pinIgnored       = "pin-ignored"
	pinsWrong        = "pins-disagree-with-records"
	pinExpired       = "pin-expired-in-use"
	olderOverNewer   = "older-digest-over-newer"
	pinLost          = "pin-lost-in-use"
	pinsTooMany      = "more-pins-than-allowed"
	tagMovedByPin    = "tag-moved-by-a-pin"
	rejectedUsed     = "rejected-image-used"
	lockNotWhole     = "lock-not-all-or-nothing"
	lockIgnored      = "lock-ignored"
	lockNotReady     = "lock-not-ready"
	lockNotRetained  = "lock-not-retained"
	lockMislaid      = "lock-disagrees-with-record"
	accessWithout    = "private-image-without-credential"
	startOnline      = "offline-start-needs-registry"
	neverSettles     = "node-never-settles"
	notDeterministic = "history-differs-when-replayed"
)

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

// check checks a node after a history, as integration/checker does.
type check struct {
	w   *world
	ctx context.Context

	images    map[string]images.Image
	pins      map[string]images.Image
	content   map[digest.Digest]content.Info
	snapshots map[string]snapshots.Info // snapshotter/name
	leases    map[string]leases.Lease
	resources map[string][]leases.Resource

	keys    map[string]key
	record  map[string]string
	tags    map[string][]digest.Digest
	ids     map[string]bool
	others  map[string]bool // IDs of other tools' images that cannot be unpacked
	records map[string]bool
	blobs   map[digest.Digest]bool
	layers  map[string]bool
	writes  map[string]bool // of failed pulls
	lock    *lockState
}

// newCheck reads the state of the node.
func newCheck(w *world) (*check, error) {
	c := &check{
		w: w, ctx: inK8s(context.Background()), images: map[string]images.Image{}, pins: map[string]images.Image{},
		content: map[digest.Digest]content.Info{}, snapshots: map[string]snapshots.Info{},
		leases: map[string]leases.Lease{}, resources: map[string][]leases.Resource{},
		keys: map[string]key{}, record: map[string]string{}, tags: map[string][]digest.Digest{}, ids: map[string]bool{}, others: map[string]bool{},
		records: map[string]bool{}, blobs: map[digest.Digest]bool{}, layers: map[string]bool{}, writes: map[string]bool{},
	}
	for ns, into := range map[string]map[string]images.Image{k8s: c.images, "imagepin": c.pins} {
		all, err := w.images.List(namespaces.WithNamespace(c.ctx, ns))
		if err != nil {
			return nil, err
		}
		for _, img := range all {
			into[img.Name] = img
		}
	}
	record, locked := c.pins[lockRecord]
	delete(c.pins, lockRecord)
	if locked {
		var err error
		if c.lock, err = w.readLock(record.Target.Digest); err != nil {
			return nil, err
		}
	}
	if err := w.blobs.Walk(c.ctx, func(i content.Info) error { c.content[i.Digest] = i; return nil }); err != nil {
		return nil, err
	}
	for _, name := range snapshotters {
		err := w.db.Snapshotter(name).Walk(c.ctx, func(_ context.Context, i snapshots.Info) error {
			c.snapshots[name+"/"+i.Name] = i
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	all, err := w.leases.List(c.ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		c.leases[l.ID] = l
		if c.resources[l.ID], err = w.leases.ListResources(c.ctx, l); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// all checks all invariants except those of listed.
func (c *check) all() {
	for _, name := range sorted(c.images) {
		c.keysOf(name, c.images[name])
	}
	for _, name := range sorted(c.tags) {
		if img, ok := c.images[name]; ok && !slices.Contains(c.tags[name], img.Target.Digest) {
			if _, err := digest.Parse(name); err != nil && c.w.facts.otherTools.Load() {
				c.accountBlob(img.Target.Digest) // moved to an image that is not unpacked and so not adopted
				continue
			}
			c.w.wrong(tagMismatch, "record %s targets %s, but its keys have %s", name, img.Target.Digest, c.tags[name])
		}
	}
	c.leased()
	c.leaks()
	c.expired()
	c.older()
	c.tagsMovedBack()
	c.pinsOfContainers()
	c.refused()
	c.locked()
}

// expired finds missing pins that a call used or created less than half of their time to live ago.
func (c *check) expired() {
	if c.w.facts.unpinned.Load() || c.w.choice.cap > 0 {
		return
	}
	for _, o := range c.w.facts.ops {
		if o.method == "ImageStatus" || o.err != nil || !o.ended || o.scope == "" || time.Since(o.began) > pinTTL/2 {
			continue
		}
		if _, created := c.w.facts.pins.Load(o.scope + "/" + o.ref); !created && c.w.facts.otherTools.Load() {
			continue // containerd's CRI resolves an image that is not adopted yet
		}
		if _, ok := c.pins[o.scope+"/"+o.ref]; !ok {
			c.w.wrong(pinExpired, "%s %s of %s used or created pin %s/%s, which is missing", o.method, o.ref, o.actor, o.scope, o.ref)
		}
	}
}

// older finds keys that have an older digest than a later pull returned, if every pull moves its tag.
func (c *check) older() {
	if c.w.choice.consistency != "off" || c.w.choice.reconfigure || c.w.choice.locks || len(c.pins) > 0 || c.w.facts.unpinned.Load() || c.w.facts.refreshed.Load() {
		return
	}
	for _, name := range sorted(c.keys) {
		k := c.keys[name]
		if strings.Contains(k.Ref, "@") {
			continue
		}
		if _, moved := c.w.facts.movedByCRI.Load(k.Ref); moved {
			continue // containerd's CRI writes a target that it read earlier over a newer one
		}
		var writers []*op
		known := true
		for _, o := range c.w.facts.ops {
			// A container runs the image that its pod was given, and does not move the tag.
			if o.ref != k.Ref || o.removes || o.method != "PullImage" && o.method != "ctr" {
				continue
			}
			// A tag of another tool applies to all targets for which its image is ready.
			if platform, sn := c.w.target(o.handler); o.method != "ctr" && (platform != k.Platform || sn != k.Snapshotter) {
				continue
			}
			known = known && o.ended && o.err == nil
			writers = append(writers, o)
		}
		last := -1
		for _, o := range writers {
			if o.id == k.Image.String() || o.method == "ctr" && o.root == k.Digest {
				last = max(last, o.end)
			}
		}
		for _, o := range writers {
			// An image that another tool tags may not be unpacked for the target.
			if known && o.id != k.Image.String() && o.start > last && o.method != "ctr" && !c.tagOfKilledPull(k, o) {
				c.w.wrong(olderOverNewer, "key %s has %s, but a later %s of %s returned %s", name, k.Image, o.method, o.actor, o.id)
			}
		}
	}
}

// tagOfKilledPull reports whether a key may be of a tag that a killed pull for another target has written, after the image of
// a pull was removed. Without transactions, the tag then has no key, and a start takes it for that of another tool.
func (c *check) tagOfKilledPull(k key, pulled *op) bool {
	var removed, killed bool
	for _, o := range c.w.facts.ops {
		removed = removed || o.removes && o.end > pulled.start && (o.ref == k.Ref || o.id == pulled.id)
		killed = killed || o.method == "PullImage" && o.ref == k.Ref && o.err != nil && o.start > pulled.start
	}
	return c.w.choice.socket && c.w.choice.kill && removed && killed
}

func (c *check) keysOf(name string, img images.Image) {
	for _, label := range sorted(img.Labels) {
		if !strings.HasPrefix(label, "io.imagepin.key.") {
			continue
		}
		var k key
		if err := json.Unmarshal([]byte(img.Labels[label]), &k); err != nil || k.Ref == "" {
			c.w.wrong(keyUnreadable, "record %s: %s", name, img.Labels[label])
			continue
		}
		if o, ok := c.record[k.String()]; ok {
			c.w.wrong(keyTwice, "key %s is on %s and %s", k, o, name)
		}
		c.keys[k.String()], c.record[k.String()], c.ids[k.Image.String()] = k, name, true
		c.names(k, name, img.Target)
		c.contentOf(k, img.Target)
	}
}

func (c *check) names(k key, name string, target ocispec.Descriptor) {
	nat := k.Platform == native()
	if !nat && target.Digest != k.Manifest {
		c.w.wrong(keyWrong, "key %s: record %s of another platform targets %s", k, name, target.Digest)
	}
	if want := repository(k.Ref) + "@" + target.Digest.String(); name != want && (name != k.Ref || !nat) {
		c.w.wrong(keyWrong, "key %s is on record %s, want %s", k, name, want)
	}
	need := func(record string) {
		c.records[record] = true
		if _, ok := c.images[record]; !ok {
			c.w.wrong(keyNoRecord, "key %s: record %s is missing", k, record)
		}
	}
	need(name)
	need(k.Image.String())
	c.tags[k.Image.String()] = append(c.tags[k.Image.String()], target.Digest)
	if nat && !strings.Contains(k.Ref, "@") {
		need(k.Ref)
		c.tags[k.Ref] = append(c.tags[k.Ref], target.Digest)
	}
}

func (c *check) contentOf(k key, target ocispec.Descriptor) {
	if target.Digest != k.Manifest {
		read[ocispec.Index](c, k, "index", target.Digest)
	}
	m, ok := read[ocispec.Manifest](c, k, "manifest", k.Manifest)
	if !ok {
		return
	}
	for _, l := range m.Layers {
		c.blobs[l.Digest] = true
		if _, ok := c.content[l.Digest]; !ok && !c.mayLackLayers() {
			c.w.wrong(keyNoLayer, "key %s: layer %s is missing", k, l.Digest)
		}
	}
	config, ok := read[ocispec.Image](c, k, "configuration", m.Config.Digest)
	if !ok {
		return
	}
	if of := platforms.Format(config.Platform); of != k.Platform {
		c.w.wrong(keyWrong, "key %s: image %s has platform %s", k, k.Image, of)
	}
	chain := identity.ChainID(slices.Clone(config.RootFS.DiffIDs))
	if chain != k.Chain || m.Config.Digest != k.Image {
		c.w.wrong(keyWrong, "key %s: image %s or snapshot %s is not that of its manifest", k, k.Image, k.Chain)
	}
	for name := k.Chain.String(); name != ""; {
		c.layers[k.Snapshotter+"/"+name] = true
		info, ok := c.snapshots[k.Snapshotter+"/"+name]
		if !ok || info.Kind != snapshots.KindCommitted {
			c.w.wrong(keyNoSnapshot, "key %s: snapshot %s is missing", k, name)
		}
		name = info.Parent
	}
}

// mayLackLayers reports whether an image may be ready without its layers: if they are discarded, or if a container has kept
// the snapshots of an image that was removed. containerd's unpacker fetches no layer whose snapshot exists
// (core/unpack/unpacker.go).
func (c *check) mayLackLayers() bool {
	return c.w.choice.discard || c.w.facts.otherTools.Load() ||
		slices.ContainsFunc(c.w.facts.ops, func(o *op) bool { return o.method == "CreateContainer" })
}

func read[T any](c *check, k key, what string, d digest.Digest) (v T, _ bool) {
	c.blobs[d] = true
	b, err := content.ReadBlob(c.ctx, c.w.blobs, ocispec.Descriptor{Digest: d})
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		c.w.wrong(keyNoContent, "key %s: %s: %v", k, what, err)
		return v, false
	}
	return v, true
}

func repository(ref string) string {
	ref, _, _ = strings.Cut(ref, "@")
	if i := strings.LastIndexByte(ref, ':'); i > strings.LastIndexByte(ref, '/') {
		return ref[:i]
	}
	return ref
}

func (c *check) retains(root, repo string) bool {
	if c.lock.retains(digest.Digest(root)) {
		return true
	}
	for _, img := range c.pins {
		if img.Labels["io.imagepin.pin.retain"] == "true" && img.Target.Digest.String() == root &&
			(repo == "" || repository(img.Labels["io.imagepin.pin.ref"]) == repo) {
			return true
		}
	}
	return false
}

// leased checks leases and retained content.
func (c *check) leased() {
	held := make(map[string]map[string]bool)
	for _, id := range sorted(c.leases) {
		l := c.leases[id]
		purpose := l.Labels["io.imagepin.lease"]
		if purpose == "resume" {
			c.resumed(id, l)
			continue
		}
		if purpose != "retain" {
			c.w.wrong(leakedLease, "lease %s (%s) leaked: %s", id, purpose, c.resources[id])
			continue
		}
		root := l.Labels["io.imagepin.retain.root"]
		if !c.retains(root, "") {
			c.w.wrong(retainedUnpinned, "lease %s retains %s, but no pin does", id, root)
		}
		if held[root] == nil {
			held[root] = make(map[string]bool)
		}
		for _, r := range c.resources[id] {
			held[root][r.Type+" "+r.ID] = true
			if sn, ok := strings.CutPrefix(r.Type, "snapshots/"); ok {
				c.accountSnapshot(sn, r.ID)
			} else {
				c.accountBlob(digest.Digest(r.ID))
			}
		}
	}
	for _, name := range sorted(c.keys) {
		k := c.keys[name]
		if !c.retains(k.Digest.String(), repository(k.Ref)) {
			continue
		}
		wants := []string{"content " + k.Manifest.String(), "content " + k.Image.String()}
		if k.Chain != "" {
			wants = append(wants, "snapshots/"+k.Snapshotter+" "+k.Chain.String())
		}
		for _, want := range wants {
			if !held[k.Digest.String()][want] {
				c.w.wrong(retentionLost, "key %s: a pin retains it, but no lease holds %s", name, want)
			}
		}
	}
}

// resumed accounts for what a failed pull has fetched, for a day.
func (c *check) resumed(id string, l leases.Lease) {
	at, err := time.Parse(time.RFC3339, l.Labels["containerd.io/gc.expire"])
	if _, flat := l.Labels["containerd.io/gc.flat"]; err != nil || !flat || time.Until(at) > 24*time.Hour {
		c.w.wrong(leakedLease, "lease %s of a failed pull: got labels %v, want that it is flat and expires within a day", id, l.Labels)
	}
	for _, r := range c.resources[id] {
		switch r.Type {
		case "content":
			c.blobs[digest.Digest(r.ID)] = true
		case "ingests":
			c.writes[r.ID] = true
		default:
			c.w.wrong(leakedLease, "lease %s of a failed pull holds %s", id, r)
		}
	}
}

func (c *check) accountBlob(d digest.Digest) {
	info, ok := c.content[d]
	if c.blobs[d] || !ok {
		return
	}
	c.blobs[d] = true
	c.accountChildren(info)
}

// accountChildren accounts for the blobs and snapshots that a blob references.
func (c *check) accountChildren(info content.Info) {
	for _, label := range sorted(info.Labels) {
		if sn, ok := strings.CutPrefix(label, "containerd.io/gc.ref.snapshot."); ok {
			c.accountSnapshot(sn, info.Labels[label])
		} else if strings.HasPrefix(label, "containerd.io/gc.ref.content.") {
			c.accountBlob(digest.Digest(info.Labels[label]))
		}
	}
}

func (c *check) accountSnapshot(sn, name string) {
	for name != "" {
		c.layers[sn+"/"+name] = true
		name = c.snapshots[sn+"/"+name].Parent
	}
}

func (c *check) leaks() {
	if c.w.facts.otherTools.Load() {
		for _, d := range slices.Sorted(maps.Keys(c.blobs)) {
			c.accountChildren(c.content[d])
		}
	}
	for name, info := range c.snapshots {
		if of, _, _ := strings.Cut(name, "/"); info.Labels["containerd.io/gc.root"] != "" {
			c.accountSnapshot(of, info.Name) // of a container
		}
	}
	for _, name := range sorted(c.images) {
		c.accountTagged(name, c.images[name])
	}
	for _, name := range sorted(c.images) {
		if _, here := c.content[c.images[name].Target.Digest]; !here && c.w.facts.otherTools.Load() {
			continue // another tool has tagged an image that was being removed
		}
		if !c.records[name] {
			c.w.wrong(leakedRecord, "record %s → %s: no key accounts for it", name, c.images[name].Target.Digest)
		}
	}
	for _, d := range slices.Sorted(maps.Keys(c.content)) {
		if !c.blobs[d] {
			c.w.wrong(leakedContent, "content %s: no key accounts for it", d)
		}
	}
	for _, name := range sorted(c.snapshots) {
		info := c.snapshots[name]
		if !c.layers[name] {
			c.w.wrong(leakedSnapshot, "snapshot %s (%s): no key accounts for it", name, info.Kind)
		}
	}
	ingests, err := c.w.blobs.ListStatuses(c.ctx)
	if err != nil {
		c.w.wrong(leakedIngest, "%v", err)
	}
	for _, i := range ingests {
		if c.writes[i.Ref] {
			continue
		}
		c.w.wrong(leakedIngest, "ingest %s leaked", i.Ref)
	}
}

// accountTagged accounts for images that another tool has tagged and that cannot be unpacked: their layers were
// discarded, and their snapshots collected. They are listed by ID, as stock containerd lists them, and can be removed.
func (c *check) accountTagged(name string, img images.Image) {
	if _, err := digest.Parse(name); err == nil || !c.w.facts.otherTools.Load() {
		return
	}
	// A key can still have the digest that its tag had before another tool moved it.
	if c.records[name] && (len(c.tags[name]) == 0 || slices.Contains(c.tags[name], img.Target.Digest)) {
		return
	}
	b := c.w.registry.byRoot(img.Target.Digest)
	if b == nil {
		return
	}
	of := b.images[native()]
	if _, unpacked := c.snapshots["first/"+of.chain.String()]; unpacked || of.chain == "" {
		return
	}
	if !slices.ContainsFunc(of.layers, func(l ocispec.Descriptor) bool { _, here := c.content[l.Digest]; return !here }) {
		return
	}
	id := of.config.Digest.String()
	c.records[name], c.records[id], c.others[id] = true, true, true
	c.accountBlob(img.Target.Digest)
}

// listed checks that the CRI lists exactly the images with keys, and that ImageStatus returns each key.
func (c *check) listed(ctx context.Context) {
	p := c.w.proc
	list, err := call[*runtime.ListImagesResponse](ctx, p, "ImageService", "ListImages", &runtime.ListImagesRequest{})
	if err != nil {
		c.w.wrong(callFailed, "ListImages: %v", err)
		return
	}
	seen := make(map[string]bool)
	for _, img := range list.GetImages() {
		seen[img.GetId()] = true
		if !c.ids[img.GetId()] && !c.others[img.GetId()] {
			c.w.wrong(listWrong, "image %s %s is listed, but has no key", img.GetId(), img.GetRepoTags())
		}
	}
	for _, id := range sorted(c.ids) {
		if !seen[id] {
			c.w.wrong(listWrong, "image %s is not listed, but has keys", id)
		}
	}
	for _, handler := range handlers {
		platform, sn := c.w.target(handler)
		for _, name := range sorted(c.keys) {
			k := c.keys[name]
			if k.Platform != platform || k.Snapshotter != sn {
				continue
			}
			if held, ok := c.pins["node/"+k.Ref]; ok && held.Target.Digest != k.Digest {
				continue // the pin overrides the tag
			}
			if d := c.lock.decides(k.Ref); d != "" && d != k.Digest {
				continue // and so does the lock
			}
			resp, err := call[*runtime.ImageStatusResponse](ctx, p, "ImageService", "ImageStatus", &runtime.ImageStatusRequest{
				Image: &runtime.ImageSpec{Image: k.Ref, RuntimeHandler: handler},
			})
			if err != nil || resp.GetImage().GetId() != k.Image.String() {
				c.w.wrong(statusWrong, "key %s has image %s, but ImageStatus returns %q%s", k, k.Image, resp.GetImage().GetId(), suffix(err))
			}
		}
	}
}
