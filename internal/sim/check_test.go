package sim

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/internal/invariants"
)

// The names of the invariants besides those of package invariants, which are also the names of problems.
const (
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

// check checks a node after a history.
type check struct {
	*invariants.Check
	w    *world
	ctx  context.Context
	lock *lockState
}

// newCheck reads the state of the node, and checks its keys.
func newCheck(w *world) (*check, error) {
	c := &check{w: w, ctx: inK8s(context.Background())}
	s := invariants.State{
		Images: map[string]images.Image{}, Pins: map[string]images.Image{}, Content: map[digest.Digest]content.Info{},
		Snapshots: map[string]snapshots.Info{}, Leases: map[string]leases.Lease{}, Resources: map[string][]leases.Resource{},
		Read: func(d digest.Digest) ([]byte, error) {
			return content.ReadBlob(c.ctx, w.blobs, ocispec.Descriptor{Digest: d})
		},
	}
	for ns, into := range map[string]map[string]images.Image{k8s: s.Images, "imagepin": s.Pins} {
		all, err := w.images.List(namespaces.WithNamespace(c.ctx, ns))
		if err != nil {
			return nil, err
		}
		for _, img := range all {
			into[img.Name] = img
		}
	}
	record, locked := s.Pins[lockRecord]
	delete(s.Pins, lockRecord)
	if locked {
		var err error
		if c.lock, err = w.readLock(record.Target.Digest); err != nil {
			return nil, err
		}
		s.Locked = c.lock.roots()
	}
	if err := w.blobs.Walk(c.ctx, func(i content.Info) error { s.Content[i.Digest] = i; return nil }); err != nil {
		return nil, err
	}
	ingests, err := w.blobs.ListStatuses(c.ctx)
	if err != nil {
		return nil, err
	}
	for _, i := range ingests {
		s.Ingests = append(s.Ingests, i.Ref)
	}
	for _, name := range snapshotters {
		err := w.db.Snapshotter(name).Walk(c.ctx, func(_ context.Context, i snapshots.Info) error {
			s.Snapshots[name+"/"+i.Name] = i
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
		s.Leases[l.ID] = l
		if s.Resources[l.ID], err = w.leases.ListResources(c.ctx, l); err != nil {
			return nil, err
		}
	}
	otherTools := w.facts.otherTools.Load()
	c.Check = invariants.New(s, invariants.Options{
		Native: native(), DiscardedLayers: c.mayLackLayers(), OtherTools: otherTools, OtherTags: otherTools, ExactPlatforms: true,
	})
	return c, nil
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// all checks all invariants except those of listed.
func (c *check) all() {
	for _, name := range sorted(c.Snapshots) {
		if info := c.Snapshots[name]; info.Labels["containerd.io/gc.root"] != "" {
			of, _, _ := strings.Cut(name, "/")
			c.UseSnapshot(of, info.Name) // of a container
		}
	}
	for _, name := range sorted(c.Images) {
		c.allowTagged(name, c.Images[name])
	}
	c.violated(c.Finish())
	c.expired()
	c.older()
	c.tagsMovedBack()
	c.pinsOfContainers()
	c.refused()
	c.locked()
}

func (c *check) violated(all []invariants.Problem) {
	for _, p := range all {
		c.w.wrong(p.Invariant, "%s", p.Text)
	}
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
		if _, ok := c.Pins[o.scope+"/"+o.ref]; !ok {
			c.w.wrong(pinExpired, "%s %s of %s used or created pin %s/%s, which is missing", o.method, o.ref, o.actor, o.scope, o.ref)
		}
	}
}

// older finds keys that have an older digest than a later pull returned, if every pull moves its tag.
func (c *check) older() {
	if c.w.choice.consistency != "off" || c.w.choice.reconfigure || c.w.choice.locks || len(c.Pins) > 0 || c.w.facts.unpinned.Load() || c.w.facts.refreshed.Load() {
		return
	}
	for _, name := range sorted(c.Keys) {
		k := c.Keys[name]
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
func (c *check) tagOfKilledPull(k invariants.Key, pulled *op) bool {
	var removed, killed bool
	for _, o := range c.w.facts.ops {
		removed = removed || o.removes && o.end > pulled.start && (o.ref == k.Ref || o.id == pulled.id)
		killed = killed || o.method == "PullImage" && o.ref == k.Ref && o.err != nil && o.start > pulled.start
	}
	return c.w.choice.socket && c.w.choice.kill && removed && killed
}

// mayLackLayers reports whether an image may be ready without its layers: if they are discarded, or if a container has kept
// the snapshots of an image that was removed. containerd's unpacker fetches no layer whose snapshot exists
// (core/unpack/unpacker.go).
func (c *check) mayLackLayers() bool {
	return c.w.choice.discard || c.w.facts.otherTools.Load() ||
		slices.ContainsFunc(c.w.facts.ops, func(o *op) bool { return o.method == "CreateContainer" })
}

// allowTagged accounts for images that another tool has tagged and that cannot be unpacked: their layers were
// discarded, and their snapshots collected. They are listed by ID, as stock containerd lists them, and can be removed.
func (c *check) allowTagged(name string, img images.Image) {
	if _, err := digest.Parse(name); err == nil || !c.w.facts.otherTools.Load() {
		return
	}
	// A key can still have the digest that its tag had before another tool moved it.
	if c.Records[name] && (len(c.Tags[name]) == 0 || slices.Contains(c.Tags[name], img.Target.Digest)) {
		return
	}
	b := c.w.registry.byRoot(img.Target.Digest)
	if b == nil {
		return
	}
	of := b.images[native()]
	if _, unpacked := c.Snapshots["first/"+of.chain.String()]; unpacked || of.chain == "" {
		return
	}
	if !slices.ContainsFunc(of.layers, func(l ocispec.Descriptor) bool { _, here := c.Content[l.Digest]; return !here }) {
		return
	}
	c.AllowImage(of.config.Digest.String(), name)
}

// listed checks that the CRI lists exactly the images with keys, and that ImageStatus returns each key.
func (c *check) listed(ctx context.Context) {
	p := c.w.proc
	list, err := call[*runtime.ListImagesResponse](ctx, p, "ImageService", "ListImages", &runtime.ListImagesRequest{})
	if err != nil {
		c.w.wrong(callFailed, "ListImages: %v", err)
		return
	}
	c.violated(c.Listed(list.GetImages()))
	for _, handler := range handlers {
		platform, sn := c.w.target(handler)
		for _, name := range sorted(c.Keys) {
			k := c.Keys[name]
			if k.Platform != platform || k.Snapshotter != sn {
				continue
			}
			if held, ok := c.Pins["node/"+k.Ref]; ok && held.Target.Digest != k.Digest {
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
