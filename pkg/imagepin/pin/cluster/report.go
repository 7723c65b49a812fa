package cluster

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/api/v1alpha1"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// EventAPI creates Events of Kubernetes. [kube.Client] implements it.
type EventAPI interface {
	// Report creates an event, unless there is one with the same owner, reason and key.
	Report(ctx context.Context, e kube.Event) error
}

const (
	// maxQueued is how many events wait to be sent. Further events are dropped.
	maxQueued = 64
	// maxReported is how many events are remembered, so that they are not sent again.
	maxReported = 1024
	// eventPeriod is the time between two events of a node, after a burst of eventBurst.
	eventPeriod = time.Second
	eventBurst  = 16
)

// EventDelay is how long a node waits before it sends an event. Most events report what happens while a container is
// created. The request for the event must not take processor time from that.
const EventDelay = time.Second

// Reporter reports what happens to pins as Events on their owners. It sends each event once, and at a limited rate, and
// drops what exceeds it. It never delays its callers. It is safe for concurrent use.
type Reporter struct {
	api   EventAPI
	queue chan kube.Event
	next  *kube.Event // the event that Run sends next, which is not in the queue any more
	sent  *lru.Cache  // kube.Event → nothing
	limit *rate.Limiter
	delay time.Duration
}

// NewReporter returns a Reporter, which waits for delay before it sends an event. It sends nothing until [Reporter.Run].
func NewReporter(api EventAPI, delay time.Duration) *Reporter {
	return &Reporter{
		api: api, queue: make(chan kube.Event, maxQueued), sent: lru.New(maxReported),
		limit: rate.NewLimiter(rate.Every(eventPeriod), eventBurst), delay: delay,
	}
}

// Run sends events until ctx ends. The next call of Run sends those that are left. Only one call may run at a time.
func (r *Reporter) Run(ctx context.Context) {
	for {
		if r.next == nil {
			select {
			case <-ctx.Done():
				return
			case e := <-r.queue:
				r.next = &e
			}
		}
		if r.wait(ctx, *r.next) != nil {
			return
		}
		err := r.api.Report(ctx, *r.next)
		if err != nil && ctx.Err() != nil {
			return
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("reason", r.next.Reason).Debug("cannot report an event")
		}
		r.next = nil
	}
}

// wait returns when an event may be sent. It fails if ctx ends before.
func (r *Reporter) wait(ctx context.Context, e kube.Event) error {
	select {
	case <-time.After(time.Until(e.At.Add(r.delay))):
		return r.limit.Wait(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (r *Reporter) report(e kube.Event) {
	e.At = time.Now()
	id := [3]string{string(e.Owner.UID), e.Reason, e.Key}
	if _, sent := r.sent.Get(id); sent {
		return
	}
	select {
	case r.queue <- e:
		r.sent.Add(id, nil)
	default:
	}
}

// won reports that a node has created an ImagePin.
func (r *Reporter) won(o kube.Owner, image string, p kube.Pin) {
	r.report(kube.Event{
		Namespace: o.Namespace, Owner: o.Owner, Type: kube.Normal, Reason: "ImagePinned", Key: image + "\x00" + p.Digest.String(),
		Note: fmt.Sprintf("%s is pinned to %s for this revision", image, p.Digest),
	})
}

// lost reports that a node has resolved a tag for a pod to another digest than that of the ImagePin.
func (r *Reporter) lost(namespace string, o v1alpha1.Owner, pod, image string, seen digest.Digest, now Pinned) {
	by := "another client"
	if now.Node != "" {
		by = "node " + now.Node
	}
	r.report(kube.Event{
		Namespace: namespace, Owner: o, Type: kube.Normal, Reason: "ImageClaimLost", Key: image + "\x00" + seen.String(),
		Note: fmt.Sprintf("%s resolved to %s for pod %s, but %s has pinned it to %s for this revision", image, seen, pod, by, now.Digest),
	})
}

// Moved reports that the node runs another digest for an owner from now on.
func (r *Reporter) Moved(namespace string, o policy.Owner, image string, previous, now digest.Digest) {
	r.report(kube.Event{
		Namespace: namespace, Owner: apiOwner(o), Type: kube.Normal, Reason: "ImagePinMoved",
		Key:  image + "\x00" + previous.String() + "\x00" + now.String(),
		Note: fmt.Sprintf("%s is pinned to %s for this revision, it was %s. Running containers are not affected", image, now, previous),
	})
}

// Drifted reports that a tag has moved in its registry.
func (r *Reporter) Drifted(namespace string, o policy.Owner, image string, pinned, tag digest.Digest) {
	r.report(kube.Event{
		Namespace: namespace, Owner: apiOwner(o), Type: kube.Warning, Reason: "ImageTagMoved", Key: image + "\x00" + tag.String(),
		Note: fmt.Sprintf("The tag of %s has moved to %s in its registry. This revision stays at %s", image, tag, pinned),
	})
}

// apiVersions has the API versions of the owners that Kubernetes itself has.
var apiVersions = map[string]string{"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}

func apiOwner(o policy.Owner) v1alpha1.Owner {
	return v1alpha1.Owner{APIVersion: apiVersions[o.Kind], Kind: o.Kind, Name: o.Name, UID: types.UID(o.UID), Revision: o.Revision}
}
