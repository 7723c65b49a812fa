package decide

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
)

// isUnpinned reports whether the rule for a tag wants it to be resolved at its registry before a revision uses it, and the revision of
// the pod is known and has no pin.
func isUnpinned(rule policy.Rule, a pin.Answer) bool {
	return rule.NewRevision == policy.FromRegistry && a.Pin == nil && a.Err == nil && a.Scope.Namespace() != "" && !a.Pod.Static()
}

// isNew is isUnpinned, but false while the Kubernetes API does not answer: another node may have pinned the tag.
func isNew(rule policy.Rule, a pin.Answer) bool { return isUnpinned(rule, a) && !a.Pod.Provisional }

// NeverPulls reports whether kubelet may find a normalized reference on the node only, because the pod has the pull policy Never for
// it. If the Kubernetes API, which knows that, does not answer, NeverPulls fails, or never is true and known is false. If the node does
// not use it, never is false.
func (d *Decider) NeverPulls(ctx context.Context, ref string, pod policy.Pod) (never, known bool, _ error) {
	return d.cluster().NeverPulls(ctx, ref, pod)
}

// ofRevisions returns the images of the revisions that have pinned the tag of a request in the namespace of its pod. The tag on the node
// can be older: a pull for the pin of another node does not move it.
func (d *Decider) ofRevisions(q Request) (all []imagepin.Entry) {
	for _, held := range d.pins.Scopes(q.Ref.String()) {
		if held.Scope.Namespace() == q.Policy.Scope.Namespace() {
			all = append(all, OfDigest(d.images, q.Ref, held.Root.Digest)...)
		}
	}
	return all
}

// decideRunning decides for a tag of a revision without a pin that a container of the pod runs already: the pod keeps its build. The
// rule can be younger than the container, or the pin has expired. ok is false if neither the node nor the registry has the digest.
func (d *Decider) decideRunning(ctx context.Context, q Request) (_ Verdict, ok bool, _ error) {
	v, err := d.authorizePinned(ctx, q, q.Running, "a container of the pod runs it")
	if errdefs.IsNotFound(err) {
		return Verdict{}, false, nil
	}
	if err == nil {
		v, err = d.applyPin(ctx, q, v)
	}
	return v, true, err
}

const (
	// silentFor is how long a registry counts as silent after a request to which it did not answer in time, and silentAfter is how
	// long such a request has taken at least.
	silentFor   = time.Minute
	silentAfter = time.Second
	// silentWait is how long a start waits for a silent registry. If it does not answer, the node has an image for the start.
	silentWait = 2 * time.Second
	// maxSilent is how many registries are remembered.
	maxSilent = 64
)

// silence has the registries that have not answered in time, by the domain of references.
type silence struct {
	since *lru.Cache // of failure
	wait  time.Duration
}

func newSilence() silence { return silence{lru.New(maxSilent), silentWait} }

// last returns the error of the last request if a registry is silent, or nil.
func (s silence) last(domain string) error {
	if kept, ok := s.since.Get(domain); ok {
		if f := kept.(failure); time.Since(f.at) < silentFor {
			return f.err
		}
	}
	return nil
}

// failure is a request that a registry did not answer in time.
type failure struct {
	at  time.Time
	err error
}

// note notes the outcome of a request that has begun at start.
func (s silence) note(domain string, start time.Time, err error) {
	switch {
	case err == nil:
		s.since.Remove(domain)
	case resolve.Unavailable(err) && time.Since(start) >= silentAfter:
		s.since.Add(domain, failure{time.Now(), err})
	}
}

// resolveNew resolves the tag of a new revision for which the node has an image that the caller may use without the registry. Without
// an answer, the next start asks again, so a registry that is silent must not cost manifest_pull_timeout each time.
func (d *Decider) resolveNew(ctx context.Context, q Request, why string) (Verdict, error) {
	domain, start := reference.Domain(q.Ref), time.Now()
	last := d.silence.last(domain)
	if last == nil {
		v, err := d.resolve(ctx, q, q.Ref, why)
		d.silence.note(domain, start, err)
		return v, err
	}
	limited, cancel := context.WithTimeout(ctx, d.silence.wait)
	defer cancel()
	v, err := d.resolve(limited, q, q.Ref, why)
	switch {
	case err == nil:
		d.silence.note(domain, start, nil)
	case limited.Err() != nil && ctx.Err() == nil:
		return Verdict{RegistryError: last}, last
	}
	return v, err
}
