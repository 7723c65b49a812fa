package retain

import (
	"fmt"

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

// Reserve reserves room to retain entries until the returned function is called. A pin that is made or moved in between
// can retain them. The Manifest and Size of the entries must be set. freed reports whether a digest will be released by
// then. A nil freed means none.
//
// Reserve returns [imagepin.RetainLimitReached] (ErrResourceExhausted) if there is no room.
func (r *Retainer) Reserve(freed func(root digest.Digest) bool, entries ...imagepin.Entry) (release func(), _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if freed == nil {
		freed = func(digest.Digest) bool { return false }
	}
	mine := &reservation{sizes: make(map[string]int64)}
	if r.reserved == nil {
		r.reserved = make(map[*reservation]struct{})
	}
	r.reserved[mine] = struct{}{}
	for _, e := range entries {
		id := leaseID(e)
		if h, held := r.held[id]; held && !freed(h.root) {
			continue
		}
		if err := r.room(e, r.total(id, freed)); err != nil {
			delete(r.reserved, mine)
			return nil, err
		}
		mine.sizes[id] = e.Size
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.reserved, mine)
	}, nil
}

// reservation is room that is reserved for future leases, in bytes by lease ID.
type reservation struct{ sizes map[string]int64 }

// total returns the number of held and reserved bytes, without one lease and without digests that are freed. The caller
// holds the lock.
func (r *Retainer) total(but string, freed func(root digest.Digest) bool) int64 {
	sizes := make(map[string]int64)
	for reserved := range r.reserved {
		for id, size := range reserved.sizes {
			sizes[id] = max(sizes[id], size)
		}
	}
	for id, h := range r.held {
		if !freed(h.root) && !r.config.Pins.HasRoot(h.root) {
			sizes[id] = max(sizes[id], h.size)
		}
	}
	delete(sizes, but)
	var total int64
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
	return &imagepin.Error{
		Reason: imagepin.RetainLimitReached, Ref: e.Ref, Target: e.Target.String(), Class: errdefs.ErrResourceExhausted,
		Message: fmt.Sprintf("%d bytes are retained, and %d more would exceed max_retained_bytes (%d)", total, e.Size, limit),
		Hint:    "Remove pins that retain content (imagepin pin ls, imagepin pin rm), or raise max_retained_bytes.",
	}
}
