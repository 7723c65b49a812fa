package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pause"
)

// Resume holds what a failed pull has fetched, for the next one, until it expires.
const Resume Purpose = "resume"

const (
	// ResumeExpiration is how long a lease with the purpose [Resume] holds content.
	ResumeExpiration = 24 * time.Hour
	// maxResumed is the maximum size in bytes of what all leases with the purpose [Resume] hold.
	maxResumed = 8 << 30
	// bootLabel is the label with the ID of the boot in which a pull wrote what its lease holds.
	bootLabel = imagepin.LabelPrefix + "boot"

	// beginning is the maximum time that containerd needs to give a write its name.
	beginning = time.Minute
)

// Resumes keeps what failed pulls have fetched: blobs, and the writes of blobs that are not complete. A lease for each of these
// pulls holds it. It is safe for concurrent use.
type Resumes struct {
	leases  leases.Manager
	content content.Store
	max     int64
	boot    string
}

// NewResumes returns a Resumes.
func NewResumes(m leases.Manager, cs content.Store) *Resumes {
	// Without a boot ID, nothing of a killed pull is kept.
	return &Resumes{leases: m, content: cs, max: maxResumed, boot: durable.BootID()}
}

// With is [With] for a pull. If fn fails and keep reports that its content can be used, another lease holds what fn has fetched until
// it expires. kept reports whether there is one.
func (r *Resumes) With(ctx context.Context, fn func(context.Context) error, keep func(error) bool) (kept bool, _ error) {
	err := withLabels(ctx, r.leases, map[string]string{imagepin.LeaseLabel: string(Pull), bootLabel: r.boot}, func(ctx context.Context) error {
		err := fn(ctx)
		if err == nil || !keep(err) {
			return err
		}
		id, _ := leases.FromContext(ctx)
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		var kerr error
		if kept, kerr = r.keep(cleanup, leases.Lease{ID: id}, true); kerr != nil {
			log.G(ctx).WithError(kerr).WithField("lease", id).Warn("cannot keep what a failed pull has fetched, the next one fetches it again")
		}
		return err
	})
	return kept, err
}

// keep holds what the lease of a pull holds with a new lease, if that is something. Without writes, it holds only complete blobs.
func (r *Resumes) keep(ctx context.Context, pull leases.Lease, writes bool) (kept bool, _ error) {
	held, err := r.resources(ctx, pull)
	if err != nil {
		return false, err
	}
	held = slices.DeleteFunc(held, func(l leases.Resource) bool { return !writes && l.Type == upstream.IngestType })
	if len(held) == 0 {
		return false, nil
	}
	l, err := r.leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(ResumeExpiration), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel: string(Resume), bootLabel: r.boot, upstream.FlatLabel: time.Now().UTC().Format(time.RFC3339),
	}))
	if err != nil {
		return false, fmt.Errorf("create a lease: %w", err)
	}
	for _, resource := range held {
		if err := r.leases.AddResource(ctx, l, resource); err != nil {
			return true, fmt.Errorf("add %s to a lease: %w", resource.ID, err)
		}
	}
	return true, r.bound(ctx, l.ID, held)
}

// resources returns the blobs and the writes that a lease holds. Snapshots are not among them.
func (r *Resumes) resources(ctx context.Context, l leases.Lease) ([]leases.Resource, error) {
	all, err := Resources(ctx, r.leases, l)
	return slices.DeleteFunc(all, func(r leases.Resource) bool { return r.Type != upstream.ContentType && r.Type != upstream.IngestType }), err
}

// bound deletes the leases that hold nothing which the newest one does not, and the oldest ones as long as all hold too much.
func (r *Resumes) bound(ctx context.Context, newest string, held []leases.Resource) error {
	all, err := r.list(ctx)
	if err != nil {
		return err
	}
	seen, size := make(map[leases.Resource]bool), int64(0)
	for _, l := range slices.Backward(all) { // the newest first
		resources, err := r.resources(ctx, l)
		if err != nil {
			return err
		}
		within := l.ID != newest && !slices.ContainsFunc(resources, func(l leases.Resource) bool { return !slices.Contains(held, l) })
		for _, resource := range resources {
			if !seen[resource] {
				seen[resource] = true
				size = imagepin.AddSize(size, r.sizeOf(ctx, resource))
			}
		}
		if within || size > r.max {
			if err := r.delete(ctx, l); err != nil {
				return err
			}
		}
	}
	return nil
}

// list returns the leases with the purpose Resume that have not expired, the oldest first.
func (r *Resumes) list(ctx context.Context) ([]leases.Lease, error) {
	all, err := r.listAll(ctx)
	return slices.DeleteFunc(all, isExpired), err
}

func (r *Resumes) listAll(ctx context.Context) ([]leases.Lease, error) {
	all, err := r.leases.List(ctx, fmt.Sprintf("labels.%q==%s", imagepin.LeaseLabel, Resume))
	if err != nil {
		return nil, fmt.Errorf("list the leases of failed pulls: %w", err)
	}
	slices.SortFunc(all, func(a, b leases.Lease) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// expiry returns when a lease expires. It is in the past for a lease without an expiry.
func expiry(l leases.Lease) time.Time {
	t, _ := time.Parse(time.RFC3339, l.Labels[upstream.ExpireLabel])
	return t
}

// sizeOf returns the size of a blob or a write, 0 if it is gone.
func (r *Resumes) sizeOf(ctx context.Context, resource leases.Resource) int64 {
	if resource.Type == upstream.IngestType {
		status, err := r.content.Status(ctx, resource.ID)
		if err != nil {
			return 0
		}
		return status.Offset
	}
	info, err := r.content.Info(ctx, digest.Digest(resource.ID))
	if err != nil {
		return 0
	}
	return info.Size
}

func isExpired(l leases.Lease) bool { return !expiry(l).After(time.Now()) }

// Expire deletes the leases that were kept at the start when they expire, until there are none or ctx ends. containerd collects what an
// expired lease held at the next garbage collection, and the deletion of a lease starts one.
func (r *Resumes) Expire(ctx context.Context) error {
	for {
		all, err := r.listAll(ctx)
		if err != nil {
			return err
		}
		var next time.Time
		for _, l := range all {
			if isExpired(l) {
				if err := r.delete(ctx, l); err != nil {
					return err
				}
			} else if at := expiry(l); next.IsZero() || at.Before(next) {
				next = at
			}
		}
		if next.IsZero() {
			return nil
		}
		if pause.Wait(ctx, time.Until(next)) != nil {
			return nil
		}
	}
}

func (r *Resumes) delete(ctx context.Context, l leases.Lease) error {
	if err := r.leases.Delete(ctx, leases.Lease{ID: l.ID}); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("delete the lease of a failed pull: %w", err)
	}
	return nil
}

// Free deletes the leases that hold what failed pulls have fetched. freed reports whether there are any. The content stays until the
// next garbage collection.
func (r *Resumes) Free(ctx context.Context) (freed bool, _ error) {
	return r.free(ctx, func(leases.Lease) (bool, error) { return true, nil })
}

// FreeOf is Free for the failed pulls that have fetched the manifest of an image, or only what the lease in ctx holds, under which
// the image was made ready.
func (r *Resumes) FreeOf(ctx context.Context, manifest digest.Digest) (freed bool, _ error) {
	id, _ := leases.FromContext(ctx)
	ready, err := r.resources(ctx, leases.Lease{ID: id})
	if err != nil {
		return false, err
	}
	return r.free(ctx, func(l leases.Lease) (bool, error) {
		held, err := r.resources(ctx, l)
		if err != nil {
			return false, err
		}
		return slices.Contains(held, leases.Resource{Type: upstream.ContentType, ID: manifest.String()}) ||
			r.within(ctx, held, func(l leases.Resource) bool { return slices.Contains(ready, l) }), nil
	})
}

// within reports whether all blobs are some that have is true for, and no write has a byte.
func (r *Resumes) within(ctx context.Context, held []leases.Resource, have func(leases.Resource) bool) bool {
	return !slices.ContainsFunc(held, func(l leases.Resource) bool {
		if l.Type == upstream.IngestType {
			return r.sizeOf(ctx, l) > 0
		}
		return !have(l)
	})
}

func (r *Resumes) free(ctx context.Context, which func(leases.Lease) (bool, error)) (freed bool, _ error) {
	all, err := r.list(ctx)
	if err != nil {
		return false, err
	}
	for _, l := range all {
		chosen, err := which(l)
		if err != nil {
			return freed, err
		}
		if !chosen {
			continue
		}
		if err := r.delete(ctx, l); err != nil {
			return freed, err
		}
		freed = true
	}
	return freed, nil
}

// Kept is what failed pulls have fetched.
type Kept struct {
	// Blobs are complete, Writes are not.
	Blobs  []digest.Digest
	Writes int
	// Written is the size in bytes of the writes.
	Written int64
	// Expires is when the last lease expires. It is zero if nothing is kept.
	Expires time.Time
}

// Kept returns what failed pulls have fetched.
func (r *Resumes) Kept(ctx context.Context) (kept Kept, _ error) {
	all, err := r.list(ctx)
	if err != nil {
		return kept, err
	}
	seen := make(map[leases.Resource]bool)
	for _, l := range all {
		if at := expiry(l); at.After(kept.Expires) {
			kept.Expires = at
		}
		held, err := r.resources(ctx, l)
		if err != nil {
			return kept, err
		}
		for _, resource := range held {
			switch {
			case seen[resource]:
			case resource.Type == upstream.ContentType:
				kept.Blobs = append(kept.Blobs, digest.Digest(resource.ID))
			default:
				kept.Writes++
				kept.Written = imagepin.AddSize(kept.Written, r.sizeOf(ctx, resource))
			}
			seen[resource] = true
		}
	}
	return kept, nil
}

// KeepLeftovers keeps what killed pulls have fetched. It must run before [DeleteLeftovers], which deletes their leases. Of a pull of an
// earlier boot it keeps complete blobs only, and deletes the other writes: containerd makes a blob durable when it is complete. It also
// removes writes whose names a power cut has destroyed.
func (r *Resumes) KeepLeftovers(ctx context.Context, records images.Store) error {
	if c, ok := r.content.(blobs.Cleaner); ok {
		if err := c.RemoveNameless(ctx, time.Now().Add(-beginning)); err != nil {
			log.G(ctx).WithError(err).Warn("cannot remove what has arrived of a blob, its name cannot be read")
		}
	}
	all, err := r.leases.List(ctx, fmt.Sprintf("labels.%q~=^(%s|%s)$", imagepin.LeaseLabel, Pull, Resume))
	if err != nil {
		return fmt.Errorf("list the leases of earlier pulls: %w", err)
	}
	var recorded map[digest.Digest]bool
	for _, l := range all {
		if l.Labels[bootLabel] == "" {
			continue // not of a pull from a registry
		}
		same := l.Labels[bootLabel] == r.boot
		if !same {
			if err := r.deleteWrites(ctx, l); err != nil {
				return err
			}
		}
		if Purpose(l.Labels[imagepin.LeaseLabel]) != Pull {
			continue
		}
		if recorded == nil {
			if recorded, err = r.recorded(ctx, records); err != nil {
				return err
			}
		}
		held, err := r.resources(ctx, l)
		if err != nil {
			return err
		}
		if r.within(ctx, held, func(l leases.Resource) bool { return recorded[digest.Digest(l.ID)] }) {
			continue // it was killed after it had recorded its image
		}
		if _, err := r.keep(ctx, l, same); err != nil {
			return err
		}
	}
	return nil
}

// recorded returns the blobs that image records keep.
func (r *Resumes) recorded(ctx context.Context, records images.Store) (map[digest.Digest]bool, error) {
	all, err := records.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("list image records: %w", err)
	}
	kept := make(map[digest.Digest]bool)
	refs := func(d digest.Digest) ([]digest.Digest, bool) {
		info, err := r.content.Info(ctx, d)
		return blobs.RefsOf(info).All(), err == nil // if it is gone, what only it keeps is kept once more
	}
	for _, img := range all {
		blobs.AddBelow(kept, true, refs, img.Target.Digest)
	}
	return kept, nil
}

// deleteWrites deletes the writes that a lease holds.
func (r *Resumes) deleteWrites(ctx context.Context, l leases.Lease) error {
	held, err := r.resources(ctx, l)
	if err != nil {
		return err
	}
	for _, resource := range held {
		if resource.Type != upstream.IngestType {
			continue
		}
		err := r.content.Abort(ctx, resource.ID)
		if err == nil || errdefs.IsNotFound(err) {
			err = r.leases.DeleteResource(ctx, l, resource)
		}
		if err != nil && !errdefs.IsNotFound(err) {
			return errors.Join(fmt.Errorf("delete the write %s of an earlier boot", resource.ID), err)
		}
	}
	return nil
}
