package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/internal/invariants"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

const (
	// lockRecord is the name of the record of the node's lock, and of the scope of its pins.
	lockRecord = "lock"
	lockTopic  = "/imagepin/lock/applied"
)

// lockEntry is an image of a lock: a tag, and a build in the repository of the tag or in a copy of it.
type lockEntry struct{ tag, repository, build string }

// locks are the locks of the histories, by name.
var locks = map[string][]lockEntry{
	"one":     {{app + ":1", app, "A"}, {app + ":3", app, "B"}},
	"two":     {{app + ":1", app, "B"}, {app + ":2", "registry.example/copies/app", "A"}, {other + ":2", other, "D"}},
	"slow":    {{app + ":1", app, "C"}, {slowRef(1), slowHost + "/tenant/1", "E"}},
	"private": {{app + ":1", app, "A"}, {privateApp + ":1", privateApp, "E"}},
}

// lockText returns a lock in YAML.
func (w *world) lockText(name string) ([]byte, error) {
	var images []lock.Image
	for _, e := range locks[name] {
		repository, err := reference.ParseNormalizedNamed(e.repository)
		if err != nil {
			return nil, err
		}
		ref, err := reference.WithDigest(repository, w.registry.named(e.build).root.Digest)
		if err != nil {
			return nil, err
		}
		images = append(images, lock.Image{ID: e.tag, Ref: ref})
	}
	l, err := lock.New(images)
	if err != nil {
		return nil, err
	}
	return l.Marshal()
}

// apply applies a lock, as imagepin apply does.
func (k *caller) apply(name string, detached bool) {
	text, err := k.w.lockText(name)
	if err != nil {
		k.w.wrong(callFailed, "lock %s: %v", name, err)
		return
	}
	o := &op{detached: detached}
	if name == "slow" && !detached {
		o.ref = slowRef(1)
	}
	r := &api.ApplyRequest{Lock: text, Name: name, Detach: detached}
	if name == "private" {
		r.Credential = &api.Credential{Username: "node", Password: "secret"}
	}
	_, _ = checkedCall[*api.ApplyResponse](k, control, "Apply", o, r)
}

// look looks at the pins of the lock, which a client reads at once.
func (k *caller) look() {
	for range 5 {
		o := &op{}
		resp, err := checkedCall[*api.PinsResponse](k, control, "Pins", o, &api.PinsRequest{Scope: lockRecord})
		if err != nil || k.w.facts.killedAt.Load() >= int64(o.start) {
			continue
		}
		active := pinsOf(resp)
		states := k.w.facts.lockStates(o.start, o.end)
		if !slices.ContainsFunc(states, func(s *lockState) bool { return maps.Equal(active, s.pins()) }) {
			k.w.wrong(lockNotWhole, "the lock decides %v, and none of the locks of this time does: %v", active, states)
		}
		for range k.rng.IntN(20) {
			k.step("waits")
		}
	}
}

// pinsOf returns the digests of pins by reference.
func pinsOf(resp *api.PinsResponse) map[string]digest.Digest {
	all := make(map[string]digest.Digest)
	for _, p := range resp.GetPins() {
		all[p.GetRef()] = digest.Digest(p.GetRoot().GetDigest())
	}
	return all
}

// lockState is what the record of the lock has.
type lockState struct{ current, previous *lock.Lock }

func (s *lockState) String() string { return fmt.Sprint(s.pins()) }

// pins returns the digests that the lock decides, by reference.
func (s *lockState) pins() map[string]digest.Digest {
	all := make(map[string]digest.Digest)
	if s == nil || s.current == nil {
		return all
	}
	for _, i := range s.current.Images {
		if tag, ok := i.Tag(); ok {
			all[tag.String()] = i.Ref.Digest()
		} else {
			all[i.Ref.String()] = i.Ref.Digest()
		}
	}
	return all
}

// decides returns the digest that the lock decides for a reference, or "".
func (s *lockState) decides(ref string) digest.Digest { return s.pins()[ref] }

// roots returns the digests of the images of the lock and the one before it.
func (s *lockState) roots() map[digest.Digest]bool {
	all := make(map[digest.Digest]bool)
	for _, l := range []*lock.Lock{s.current, s.previous} {
		if l != nil {
			for _, i := range l.Images {
				all[i.Ref.Digest()] = true
			}
		}
	}
	return all
}

func inPins(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, "imagepin") }

// readLock reads the blob of the record of the lock.
func (w *world) readLock(d digest.Digest) (*lockState, error) {
	text, err := content.ReadBlob(inPins(context.Background()), w.blobs, ocispec.Descriptor{Digest: d})
	if err != nil {
		return nil, err
	}
	type applied struct {
		Lock string `json:"lock"`
	}
	var b struct {
		Current  *applied `json:"current"`
		Previous *applied `json:"previous"`
	}
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	s := &lockState{}
	if b.Current != nil {
		if s.current, err = lock.Parse([]byte(b.Current.Lock)); err != nil {
			return nil, err
		}
	}
	if b.Previous != nil {
		s.previous, err = lock.Parse([]byte(b.Previous.Lock))
	}
	return s, err
}

// lockWritten notes a write of the record of the lock; d is empty if the record was removed. The writer calls done with the error
// of the answer.
func (w *world) lockWritten(ctx context.Context, d digest.Digest) (done func(answer error)) {
	s := &lockState{}
	if d != "" {
		var err error
		if s, err = w.readLock(d); err != nil {
			w.wrong(lockNotWhole, "the record of the lock has %s: %v", d, err)
			s = &lockState{}
		}
	}
	f := &w.facts
	f.mu.Lock()
	defer f.mu.Unlock()
	of := &pinWrite{name: lockRecord, step: w.steps, root: d, by: actorOf(ctx), lock: s}
	f.locks = append(f.locks, of)
	return func(answer error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		of.lost = answer != nil
	}
}

// lockInEffect notes that the last lock that was written is in effect.
func (w *world) lockInEffect() {
	w.facts.mu.Lock()
	defer w.facts.mu.Unlock()
	for _, of := range w.facts.locks {
		if of.done == 0 {
			of.done = w.steps
		}
	}
}

// lockStates returns the states of the lock that can have been in effect between two steps.
func (f *facts) lockStates(since, until int) []*lockState {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := []*lockState{{}}
	for _, of := range f.locks {
		switch {
		case of.done != 0 && of.done < since:
			all = []*lockState{of.lock}
		case of.step <= until:
			all = append(all, of.lock)
		}
	}
	return all
}

// checkSwitch checks that a call has switched the lock if it succeeded, and only then.
func (w *world) checkSwitch(o *op) {
	if !slices.Contains([]string{"Apply", "Rollback", "RemoveLock"}, o.method) || o.detached {
		return
	}
	f := &w.facts
	f.mu.Lock()
	switched := slices.ContainsFunc(f.locks, func(of *pinWrite) bool { return of.by == o.actor && of.step >= o.start && !of.lost })
	f.mu.Unlock()
	if switched != (o.err == nil) {
		w.wrong(lockNotWhole, "%s of %s has switched the lock: %t, its error: %v", o.method, o.actor, switched, o.err)
	}
}

// checkLocked checks that a call used the image that the lock decides.
func (k *caller) checkLocked(o *op) {
	switch {
	case !k.w.choice.locks || o.id == "" || o.sandbox != "" && !k.w.cri.has(o.sandbox):
		return
	case o.method == "ImageStatus" && (o.sandbox == "" || k.w.facts.concurrent(o)):
		return // that of an image's user is for the entry that was answered last
	case !slices.Contains([]string{"PullImage", "ImageStatus", "CreateContainer"}, o.method):
		return
	}
	platform, _ := k.w.target(o.handler)
	var allowed []string
	for _, s := range k.w.facts.lockStates(k.w.facts.sharedSince(o), o.end) {
		root := s.decides(o.ref)
		if root == "" {
			return
		}
		allowed = append(allowed, k.w.registry.byRoot(root).images[platform].config.Digest.String())
	}
	if !slices.Contains(allowed, o.id) {
		k.w.wrong(lockIgnored, "%s %s for %s: got image %s, the lock decides %s", o.method, o.ref, o.handler, o.id, allowed)
	}
}

// expectedOfLock reports whether the lock, or a call that ends an apply, causes an error.
func (w *world) expectedOfLock(o *op, text string) bool {
	states := w.facts.lockStates(o.start, o.end)
	canceled := strings.Contains(text, "ApplyCanceled") && w.facts.during(o, "CancelApply", "Rollback", "RemoveLock")
	switch o.method {
	case "Apply":
		return canceled || strings.Contains(text, "ApplyInProgress") && w.facts.during(o, "Apply", "Rollback", "RemoveLock")
	case "Rollback":
		return canceled || strings.Contains(text, "UnknownLock") && slices.ContainsFunc(states, func(s *lockState) bool { return s.previous == nil })
	case "RemoveLock":
		return canceled || strings.Contains(text, "UnknownLock") &&
			slices.ContainsFunc(states, func(s *lockState) bool { return s.current == nil || s.previous == nil })
	case "SetPin", "RemovePin", "Refresh":
		return strings.Contains(text, "LockedReference")
	}
	return false
}

// during reports whether a call of some methods ran at the same time as another, or an apply that was detached before.
func (f *facts) during(o *op, methods ...string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.ops, func(other *op) bool {
		return other != o && slices.Contains(methods, other.method) && other.start <= o.end && (!other.ended || other.end >= o.start || other.detached)
	})
}

// locked checks that the images of the lock are ready and retained, and that no other lock is left.
func (c *check) locked() {
	var blob digest.Digest
	if n := len(c.w.facts.locks); n > 0 {
		blob = c.w.facts.locks[n-1].root
	}
	if err := c.w.blobs.Walk(inPins(c.ctx), func(i content.Info) error {
		if i.Digest != blob {
			c.w.wrong(invariants.LeakedContent, "content %s of a lock leaked", i.Digest)
		}
		return nil
	}); err != nil {
		c.w.wrong(invariants.LeakedContent, "%v", err)
	}
	all, err := c.w.leases.List(inPins(c.ctx))
	if err != nil {
		c.w.wrong(invariants.LeakedLease, "%v", err)
	}
	for _, l := range all {
		c.w.wrong(invariants.LeakedLease, "lease %s of a lock leaked", l.ID)
	}
	if c.lock == nil || c.lock.current == nil {
		return
	}
	for _, i := range c.lock.current.Images {
		for _, handler := range handlers {
			platform, sn := c.w.target(handler)
			if _, offered := c.w.registry.byRoot(i.Ref.Digest()).images[platform]; !offered {
				continue
			}
			of := invariants.Key{Ref: i.Ref.String(), Platform: platform, Snapshotter: sn}
			if k, ok := c.Keys[of.String()]; !ok || k.Digest != i.Ref.Digest() {
				c.w.wrong(lockNotReady, "%s of the lock has no key", of)
			}
		}
	}
	if c.lock.previous == nil {
		return
	}
	for _, i := range c.lock.previous.Images {
		c.previous(i)
	}
}

// previous checks that the content of an image of the lock before the current one is retained.
func (c *check) previous(i lock.Image) {
	of := c.w.registry.byRoot(i.Ref.Digest()).images[native()]
	_, manifest := c.Content[of.manifest.Digest]
	_, config := c.Content[of.config.Digest]
	_, unpacked := c.Snapshots["first/"+of.chain.String()]
	if !manifest || !config || of.chain != "" && !unpacked {
		c.w.wrong(lockNotRetained, "%s of the previous lock: manifest %t, configuration %t, snapshot %t", i.Ref, manifest, config, unpacked)
	}
}

// activeLock checks that the lock that imagepin applies is that of the record, and that ImageStatus returns its images.
func (c *check) activeLock(ctx context.Context) {
	p := c.w.proc
	resp, err := call[*api.PinsResponse](ctx, p, control, "Pins", &api.PinsRequest{Scope: lockRecord})
	if err != nil {
		c.w.wrong(callFailed, "Pins: %v", err)
	}
	if active := pinsOf(resp); !maps.Equal(active, c.lock.pins()) {
		c.w.wrong(lockMislaid, "the lock decides %v, but its record has %v", active, c.lock.pins())
	}
	if !c.w.choice.locks {
		return
	}
	st, err := call[*api.LockStatusResponse](ctx, p, control, "LockStatus", &api.LockStatusRequest{})
	if err != nil {
		c.w.wrong(callFailed, "LockStatus: %v", err)
	}
	if st.GetApplying() != nil {
		c.w.wrong(neverSettles, "an apply still runs: %v", st.GetApplying().GetPhase())
	}
	if n := st.GetCounts().GetMissing(); n > 0 {
		c.w.wrong(lockNotReady, "LockStatus: %d images are missing", n)
	}
	pins := c.lock.pins()
	for _, ref := range sorted(pins) {
		for _, handler := range handlers {
			platform, _ := c.w.target(handler)
			img, offered := c.w.registry.byRoot(pins[ref]).images[platform]
			if !offered {
				continue
			}
			resp, err := call[*runtime.ImageStatusResponse](ctx, p, "ImageService", "ImageStatus", &runtime.ImageStatusRequest{
				Image: &runtime.ImageSpec{Image: ref, RuntimeHandler: handler},
			})
			if err != nil || resp.GetImage().GetId() != img.config.Digest.String() {
				c.w.wrong(lockIgnored, "the lock decides %s for %s, but ImageStatus returns %q%s", img.config.Digest, ref, resp.GetImage().GetId(), suffix(err))
			}
		}
	}
}
