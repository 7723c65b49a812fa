package retain

import (
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// HoldsRoot reports whether a lease holds content of a digest.
func (r *Retainer) HoldsRoot(root digest.Digest) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.held {
		if h.root == root && len(h.holds) > 0 {
			return true
		}
	}
	return false
}

const (
	// pendingShare is the part of MaxBytes that the content of a namespace counts for, at most, before it has arrived: a registry can
	// send as slowly as it wants, and a manifest can declare any size. One sixteenth.
	pendingShare = 16
	// namespaceShare and ofShares are the part of MaxBytes that one namespace can retain: three quarters.
	namespaceShare, ofShares = 3, 4
)

// Reserve reserves room to retain entries until the returned function is called. A pin that is made or moved in between
// can retain them. The Manifest and Size of the entries must be set. freed reports whether a digest will be released by
// then. A nil freed means none.
//
// namespace is the Kubernetes namespace of the pod that the pin is for. It is empty without a pod. For other namespaces, the
// entries count with what here returns, the number of bytes of them that are on the node, and with a bounded part of the rest.
// A nil here means that everything is.
//
// Reserve returns [imagepin.RetainLimitReached] (ErrResourceExhausted) if there is no room.
func (r *Retainer) Reserve(namespace string, here func() int64, freed func(root digest.Digest) bool, entries ...imagepin.Entry) (release func(), _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if freed == nil {
		freed = func(digest.Digest) bool { return false }
	}
	mine := &reservation{namespace: namespace, sizes: make(map[string]int64)}
	if r.reserved == nil {
		r.reserved = make(map[*reservation]struct{})
	}
	r.reserved[mine] = struct{}{}
	for _, e := range entries {
		id := leaseID(e)
		if h, held := r.held[id]; held && !freed(h.root) {
			continue
		}
		err := r.room(e, r.total(id, freed, everything(namespace)))
		if err == nil && namespace != "" {
			err = r.roomIn(namespace, e, r.total(id, freed, r.in(namespace)))
		}
		if err != nil {
			delete(r.reserved, mine)
			return nil, err
		}
		mine.sizes[id] = e.Size
	}
	mine.here = here
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reserved, mine)
	}, nil
}

// reservation is room that is reserved for future leases, in bytes by lease ID.
type reservation struct {
	namespace string
	sizes     map[string]int64
	here      func() int64 // how many bytes of them are on the node; nil means all
}

// pending returns how much of each lease has not arrived.
func (v *reservation) pending() map[string]int64 {
	if v.here == nil {
		return nil
	}
	left := max(v.here(), 0)
	pending := make(map[string]int64)
	for _, id := range slices.Sorted(maps.Keys(v.sizes)) {
		here := min(v.sizes[id], left)
		left -= here
		pending[id] = v.sizes[id] - here
	}
	return pending
}

// counted selects what counts for a total.
type counted struct {
	reservation func(namespace string) bool
	root        func(root digest.Digest) bool
	// whole reports whether the reservations of a namespace count with what has not arrived, too.
	whole func(namespace string) bool
}

// everything selects all, for a caller of a namespace.
func everything(namespace string) counted {
	all := func(string) bool { return true }
	return counted{all, func(digest.Digest) bool { return true }, func(of string) bool { return of == namespace }}
}

// arrived selects all that has arrived, and a part of the rest.
var arrived = counted{func(string) bool { return true }, func(digest.Digest) bool { return true }, func(string) bool { return false }}

// in selects what counts for a namespace.
func (r *Retainer) in(namespace string) counted {
	by := r.config.Pins.RetainedBy()
	own := func(of string) bool { return of == namespace }
	return counted{own, func(root digest.Digest) bool { return slices.Contains(by[root], namespace) }, own}
}

// total returns the number of held and reserved bytes, without one lease and without digests that are freed. The caller
// holds the mutex.
func (r *Retainer) total(but string, freed func(root digest.Digest) bool, what counted) int64 {
	sizes := make(map[string]int64)
	pending := make(map[string]map[string]int64) // by namespace and lease
	for reserved := range r.reserved {
		if !what.reservation(reserved.namespace) {
			continue
		}
		var missing map[string]int64
		if !what.whole(reserved.namespace) {
			missing = reserved.pending()
		}
		for id, size := range reserved.sizes {
			sizes[id] = max(sizes[id], size-missing[id])
		}
		if pending[reserved.namespace] == nil {
			pending[reserved.namespace] = make(map[string]int64)
		}
		for id, n := range missing {
			pending[reserved.namespace][id] = max(pending[reserved.namespace][id], n)
		}
	}
	for id, h := range r.held {
		if !freed(h.root) && !r.config.Pins.HasRoot(h.root) && what.root(h.root) {
			sizes[id] = max(sizes[id], h.size)
		}
	}
	delete(sizes, but)
	total := sum(sizes)
	for _, missing := range pending {
		delete(missing, but)
		total = imagepin.AddSize(total, min(sum(missing), r.config.MaxBytes()/pendingShare))
	}
	return total
}

func sum(sizes map[string]int64) (total int64) {
	for _, size := range sizes {
		total = imagepin.AddSize(total, size)
	}
	return total
}

// room returns an error if there is no room for an entry. total is the number of bytes that are already retained.
func (r *Retainer) room(e imagepin.Entry, total int64) error {
	limit := r.config.MaxBytes()
	if limit <= 0 || r.config.Pins.HasRoot(e.Root.Digest) || imagepin.AddSize(total, e.Size) <= limit {
		return nil
	}
	return limitReached(e, fmt.Sprintf("%d bytes are retained, and %d more would exceed max_retained_bytes (%d)", total, e.Size, limit))
}

// roomIn returns an error if there is no room for an entry in the share of a namespace. total is the number of bytes that the
// namespace retains.
func (r *Retainer) roomIn(namespace string, e imagepin.Entry, total int64) error {
	limit := r.config.MaxBytes()
	share := limit / ofShares * namespaceShare
	if limit <= 0 || r.config.Pins.HasRoot(e.Root.Digest) || imagepin.AddSize(total, e.Size) <= share {
		return nil
	}
	return limitReached(e, fmt.Sprintf("namespace %s retains %d bytes, and %d more would exceed three quarters of max_retained_bytes (%d)",
		namespace, total, e.Size, limit))
}

func limitReached(e imagepin.Entry, message string) error {
	return &imagepin.Error{
		Reason: imagepin.RetainLimitReached, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrResourceExhausted, Message: message,
		Hint: "Remove pins that retain content (imagepin pin ls, imagepin pin rm), or raise max_retained_bytes.",
	}
}

// OverShare returns a function that reports whether a namespace retains more than an equal part of MaxBytes for each namespace, so
// that its pins give way to what another namespace will retain. It reports false for all if that one would be above its own part
// with more bytes.
func (r *Retainer) OverShare(namespace string, more int64) func(namespace string) bool {
	of := r.config.Pins.RetainedBy()
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[string]int64{namespace: more}
	for _, h := range r.held {
		if r.config.Pins.HasRoot(h.root) {
			continue
		}
		for _, by := range of[h.root] {
			used[by] = imagepin.AddSize(used[by], h.size)
		}
	}
	part := r.config.MaxBytes() / int64(len(used))
	return func(other string) bool { return used[namespace] <= part && used[other] > part }
}
