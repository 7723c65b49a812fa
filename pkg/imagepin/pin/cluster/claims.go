package cluster

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/imagepin/imagepin/pkg/imagepin/internal/flight"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster/kube"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// API is the Kubernetes API. [kube.Client] implements it, and limits the time of each call. Its errors are
// ErrUnavailable if the API server does not answer or refuses all requests.
type API interface {
	// OwnerOf returns the owner of a pod, or nil if the pod has none. It fails with ErrNotFound if there is no such pod.
	OwnerOf(ctx context.Context, pod kube.Pod) (*kube.Owner, error)
	// ImagesOf returns the images of a pod, with their pull policies. It fails as OwnerOf does.
	ImagesOf(ctx context.Context, pod kube.Pod) ([]kube.PodImage, error)
	// Find returns the ImagePin of an owner and an image, or nil if there is none. If cached is true, it can miss an
	// ImagePin that was just created.
	Find(ctx context.Context, owner kube.Owner, image string, cached bool) (*kube.Pin, error)
	// Claim creates the ImagePin of an owner and an image. If there is one, it returns that. created reports whether this
	// call has created it.
	Claim(ctx context.Context, owner kube.Owner, pod kube.Pod, image string, d digest.Digest) (p kube.Pin, created bool, _ error)
}

// Observer is notified of questions to the API server.
type Observer interface {
	// Claimed is called at the end of each question. took is its duration.
	Claimed(o pin.Outcome, took time.Duration)
	// Lost is called when a provisional pin gives way to an ImagePin with another digest. It counts as the outcome Lost, but
	// not as a question.
	Lost()
}

// ClaimsConfig configures Claims. All fields are required.
type ClaimsConfig struct {
	API      API
	Observer Observer
	Reporter *Reporter
	// Recheck is how long an ImagePin that was read is used before it is read again.
	Recheck time.Duration
}

const (
	// maxOwners is how many owners of pods are remembered, and maxRead how many ImagePins.
	maxOwners = 4096
	maxRead   = 16384
	// maxMissed is how many answers are remembered that an ImagePin is missing, and missing is for how long. kubelet asks for
	// the status of an image and then pulls it. If another node creates the ImagePin in between, the claim finds it.
	maxMissed = 256
	missing   = time.Second
)

// Claims finds and creates ImagePins. It is safe for concurrent use.
type Claims struct {
	config ClaimsConfig
	owners *lru.Cache // types.UID of the pod → *kube.Owner, nil for a pod without an owner
	read   *lru.Cache // pinKey → read
	// missed has the pods for which an ImagePin was missing: missKey → time.Time of the answer.
	missed *lru.Cache

	keeping sync.Mutex // held while read changes

	asked   flight.Group[*kube.Owner]
	lookups flight.Group[digest.Digest]
	claims  flight.Group[digest.Digest]
}

// pinKey identifies an ImagePin.
type pinKey struct {
	namespace, uid, revision, image string
}

// missKey identifies an ImagePin that is missing for a pod.
type missKey struct {
	pinKey
	pod string // its UID
}

// read is an ImagePin that was read.
type read struct {
	Pinned
	at   time.Time // when the API server was asked
	kept time.Time // when the answer had come
}

// Pinned is what an ImagePin says.
type Pinned struct {
	Digest digest.Digest
	// Node is the node that created the ImagePin, and At is when. Node is empty if another client than a node created it.
	Node string
	At   time.Time
}

// NewClaims returns Claims.
func NewClaims(c ClaimsConfig) *Claims {
	return &Claims{config: c, owners: lru.New(maxOwners), read: lru.New(maxRead), missed: lru.New(maxMissed)}
}

// Owner returns the owner of a pod, or nil if it has none. It asks the API server once for each pod. Errors are those of
// [API.OwnerOf]; a pod that the API server does not know has no owner.
func (c *Claims) Owner(ctx context.Context, pod policy.Pod) (*policy.Owner, error) {
	o, err := c.owner(ctx, pod)
	return ownerOf(o), err
}

// KnownOwner is Owner without a request. ok is false if the owner was not asked for before.
func (c *Claims) KnownOwner(pod policy.Pod) (_ *policy.Owner, ok bool) {
	if known, ok := c.owners.Get(types.UID(pod.UID)); ok {
		return ownerOf(known.(*kube.Owner)), true
	}
	return nil, false
}

func ownerOf(o *kube.Owner) *policy.Owner {
	if o == nil {
		return nil
	}
	return &policy.Owner{Kind: o.Kind, Name: o.Name, UID: string(o.UID), Revision: o.Revision}
}

func (c *Claims) owner(ctx context.Context, pod policy.Pod) (*kube.Owner, error) {
	uid := types.UID(pod.UID)
	if known, ok := c.owners.Get(uid); ok {
		return known.(*kube.Owner), nil
	}
	return c.asked.Do(ctx, pod.UID, func(ctx context.Context) (o *kube.Owner, err error) {
		start := time.Now()
		o, err = c.askOwner(ctx, kube.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: uid})
		if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
			return nil, nil // not a pod of the API server. It is not remembered: the server may learn of it later
		}
		if err != nil {
			c.failed(pod, err, start)
			return nil, err
		}
		c.owners.Add(uid, o)
		return o, nil
	})
}

const (
	// boundRetries is how often the owner of a pod is asked for again that the node may not read, and boundDelay is the
	// time before the first.
	boundRetries = 3
	boundDelay   = 100 * time.Millisecond
)

// askOwner asks the API server for the owner of a pod. A node may read the pods that are bound to it. An API server other
// than kubelet's may learn a moment later that a pod is bound, so askOwner asks again if it refuses.
func (c *Claims) askOwner(ctx context.Context, pod kube.Pod) (o *kube.Owner, err error) {
	delay := boundDelay
	for try := 0; ; try++ {
		o, err = c.config.API.OwnerOf(ctx, pod)
		if !errdefs.IsPermissionDenied(err) || try == boundRetries {
			return o, err
		}
		select {
		case <-time.After(delay):
			delay *= 2
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Lookup returns the digest that the cluster has pinned an image to for the owner of a pod, or "" if there is no ImagePin.
// It asks the API server unless the ImagePin was read within the configured time. The API server answers from its cache,
// which can miss an ImagePin that was just created. If the node has read the ImagePin before, or has a copy of it, which
// copied reports, Lookup returns "" only after an answer that is not from the cache. Otherwise, it also returns "" if the
// ImagePin was missing for the same pod within the last second.
func (c *Claims) Lookup(ctx context.Context, pod policy.Pod, image string, copied bool) (digest.Digest, error) {
	owner, err := c.owner(ctx, pod)
	if err != nil || owner == nil {
		return "", err
	}
	pod.Owner = ownerOf(owner)
	k := keyOf(pod, image)
	known, ok := c.get(k)
	if ok && time.Since(known.at) < c.config.Recheck {
		return known.Digest, nil
	}
	confirm := ok || copied
	miss := missKey{k, pod.UID}
	if at, ok := c.missed.Get(miss); ok && !confirm && time.Since(at.(time.Time)) < missing {
		return "", nil
	}
	return c.lookups.Do(ctx, k.String()+"\x00"+strconv.FormatBool(confirm), func(ctx context.Context) (digest.Digest, error) {
		start := time.Now()
		p, err := c.config.API.Find(ctx, *owner, image, true)
		if err == nil && p == nil && confirm {
			p, err = c.config.API.Find(ctx, *owner, image, false)
		}
		if err != nil {
			c.failed(pod, err, start)
			return "", err
		}
		if p == nil {
			c.forget(k, start)
			c.missed.Add(miss, time.Now())
			c.config.Observer.Claimed(pin.Missing, time.Since(start))
			return "", nil
		}
		c.keep(k, *p, start)
		c.config.Observer.Claimed(pin.Found, time.Since(start))
		return p.Digest, nil
	})
}

// Exists reports whether the cluster has the ImagePin of an image for an owner in a namespace. It sends a second request, which is
// not answered from the cache of the API server, if the first does not find it. Errors are those of [API.Find].
func (c *Claims) Exists(ctx context.Context, namespace string, owner policy.Owner, image string) (bool, error) {
	start := time.Now()
	o := kube.Owner{Owner: apiOwner(owner), Namespace: namespace}
	p, err := c.config.API.Find(ctx, o, image, true)
	if err == nil && p == nil {
		p, err = c.config.API.Find(ctx, o, image, false)
	}
	switch {
	case err != nil:
		c.failed(policy.Pod{}, err, start)
	case p == nil:
		c.config.Observer.Claimed(pin.Missing, time.Since(start))
	default:
		c.config.Observer.Claimed(pin.Found, time.Since(start))
	}
	return p != nil, err
}

// Known returns what the ImagePin of an image for the pod's owner, which the pod has, said when it was last read. It sends
// no request.
func (c *Claims) Known(pod policy.Pod, image string) (Pinned, bool) {
	if pod.Owner == nil {
		return Pinned{}, false
	}
	known, ok := c.get(keyOf(pod, image))
	return known.Pinned, ok
}

// Claim pins an image to a digest for the owner of a pod. It returns the digest of the ImagePin: that of another node if
// that was first. The image must be known to run on this node.
//
// Errors are ErrUnavailable if the API server does not answer, and ErrPermissionDenied and ErrFailedPrecondition if it
// refuses the claim.
func (c *Claims) Claim(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error) {
	return c.claim(ctx, pod, image, d, false)
}

// ClaimProvisional is [Claims.Claim] for a provisional pin. It does not report that another node was first, because the
// pin has not moved yet: see [Claims.Lost].
func (c *Claims) ClaimProvisional(ctx context.Context, pod policy.Pod, image string, d digest.Digest) (digest.Digest, error) {
	return c.claim(ctx, pod, image, d, true)
}

// Lost reports that a provisional pin has given way to an ImagePin of the pod's owner, which the pod has. d is the digest
// of the provisional pin, which was made for the pod. Call it once for each such pin.
func (c *Claims) Lost(pod policy.Pod, image string, d digest.Digest, now Pinned) {
	c.config.Observer.Lost()
	c.config.Reporter.lost(pod.Namespace, apiOwner(*pod.Owner), pod.Name, image, d, now)
}

func (c *Claims) claim(ctx context.Context, pod policy.Pod, image string, d digest.Digest, provisional bool) (digest.Digest, error) {
	owner, err := c.owner(ctx, pod)
	if err != nil {
		return "", err
	}
	if owner == nil {
		return d, nil // the pod is gone
	}
	pod.Owner = ownerOf(owner)
	k := keyOf(pod, image)
	if known, ok := c.get(k); ok {
		return known.Digest, nil
	}
	// Calls with different digests must not be merged: each has to learn whether its own digest was pinned.
	call := k.String() + "\x00" + d.String() + "\x00" + strconv.FormatBool(provisional)
	return c.claims.Do(ctx, call, func(ctx context.Context) (digest.Digest, error) {
		start := time.Now()
		p, created, err := c.config.API.Claim(ctx, *owner, kube.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}, image, d)
		took := time.Since(start)
		switch {
		case err != nil:
			c.failed(pod, err, start)
			return "", err
		case created:
			c.config.Observer.Claimed(pin.Won, took)
			c.config.Reporter.won(*owner, image, p)
		case p.Digest == d:
			c.config.Observer.Claimed(pin.Agreed, took)
		case provisional:
			c.config.Observer.Claimed(pin.Found, took)
		default:
			c.config.Observer.Claimed(pin.Lost, took)
			c.config.Reporter.lost(owner.Namespace, owner.Owner, pod.Name, image, d, pinned(p))
		}
		c.keep(k, p, start)
		return p.Digest, nil
	})
}

// keep remembers an ImagePin. It is as old as the question, which an update of the ImagePin may have overtaken.
func (c *Claims) keep(k pinKey, p kube.Pin, asked time.Time) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	c.read.Add(k, read{Pinned: pinned(p), at: asked, kept: time.Now()})
}

// forget removes what was read of an ImagePin, unless it was kept after the question that did not find it: the API server's
// cache may have answered that.
func (c *Claims) forget(k pinKey, asked time.Time) {
	c.keeping.Lock()
	defer c.keeping.Unlock()
	if known, ok := c.get(k); ok && !known.kept.After(asked) {
		c.read.Remove(k)
	}
}

func pinned(p kube.Pin) Pinned {
	now := Pinned{Digest: p.Digest, At: p.CreatedAt}
	if p.By != nil {
		now.Node = p.By.Node
	}
	return now
}

func (c *Claims) get(k pinKey) (read, bool) {
	known, ok := c.read.Get(k)
	if !ok {
		return read{}, false
	}
	return known.(read), true
}

// keyOf returns the key for a pod, whose owner must be set. An owner is identified by its UID, but a pod in another namespace
// can name it as its owner, too.
func keyOf(pod policy.Pod, image string) pinKey {
	return pinKey{namespace: pod.Namespace, uid: pod.Owner.UID, revision: pod.Owner.Revision, image: image}
}

// String returns a text that is different for each ImagePin.
func (k pinKey) String() string {
	return k.namespace + "\x00" + k.uid + "\x00" + k.revision + "\x00" + k.image
}

// failed notifies the observer of a question for a pod that began at start and failed. It does not count calls whose
// callers have gone, nor that the API server refuses requests for a pod that may be gone: the node logs those.
func (c *Claims) failed(pod policy.Pod, err error, start time.Time) {
	outcome := pin.Refused
	switch {
	case errors.Is(err, context.Canceled), pod.MayBeGone && errdefs.IsPermissionDenied(err):
		return
	case errdefs.IsUnavailable(err):
		outcome = pin.Unavailable
	}
	c.config.Observer.Claimed(outcome, time.Since(start))
}

// String describes who created the ImagePin and when, for messages.
func (p Pinned) String() string {
	by := "by another client"
	if p.Node != "" {
		by = "by node " + p.Node
	}
	return by + " at " + p.At.UTC().Format(time.RFC3339)
}
