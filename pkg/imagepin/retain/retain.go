package retain

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

const (
	retainPurpose   = "retain"
	retainPrefix    = "imagepin-retain-"
	labelRetainRoot = imagepin.LabelPrefix + "retain.root"
	labelRetainSize = imagepin.LabelPrefix + "retain.bytes"
)

// Pins are the pins of the node. [pin.Store] is one.
type Pins interface {
	// Retains reports whether a pin retains a digest.
	Retains(root digest.Digest) bool
	// Retained returns the digests that pins retain.
	Retained() []digest.Digest
	// Prove notes, on the pins that retain a digest of ref's repository, that credentials were accepted for it.
	Prove(ctx context.Context, ref reference.Named, root digest.Digest, proofs ...string) error
}

// Images are the images that are ready on the node. [store.Store] is one.
type Images interface {
	// ByRoot returns the entries of a digest, of all references and targets.
	ByRoot(root digest.Digest) []imagepin.Entry
	// Proofs returns the proofs on an image record.
	Proofs(record string) []string
	// AddToLease makes the lease in ctx hold what entries need. It fails with ErrNotFound where a part is gone.
	AddToLease(ctx context.Context, entries ...imagepin.Entry) error
}

// Config is what a Retainer works with. All fields are required.
type Config struct {
	Leases  leases.Manager
	Content content.Store
	Pins    Pins
	Images  Images
	// MaxBytes returns how many bytes may be retained, as registries have them; zero is no limit.
	MaxBytes func() int64
	// Released is called when leases have been deleted, so that what they held is collected. It must not wait for that.
	Released func()
}

// Retainer holds the content of pins. It is safe for concurrent use.
type Retainer struct {
	Config
	write *semaphore.Weighted // one writer at a time

	mu       sync.Mutex          // never held while containerd is called
	held     map[string]retained // by lease
	reserved map[*reservation]struct{}
}

// New returns a retainer. [Retainer.SyncAll] has to be called first.
func New(c Config) *Retainer { return &Retainer{Config: c, write: semaphore.NewWeighted(1)} }

// lock makes the caller the only writer until unlock is called.
func (r *Retainer) lock(ctx context.Context) (unlock func(), _ error) {
	if err := r.write.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { r.write.Release(1) }, nil
}

type retained struct {
	root  digest.Digest
	size  int64
	holds map[leases.Resource]bool
}

// load reads which leases there are, and what they hold: a kill can have come before one held everything.
func (r *Retainer) load(ctx context.Context) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := r.Leases.List(ctx, fmt.Sprintf("labels.%q==%s", imagepin.LeaseLabel, retainPurpose))
	if err != nil {
		return fmt.Errorf("list what is retained: %w", err)
	}
	held := make(map[string]retained, len(all))
	for _, l := range all {
		resources, err := r.Leases.ListResources(ctx, l)
		if err != nil {
			return fmt.Errorf("list what lease %s retains: %w", l.ID, err)
		}
		holds := make(map[leases.Resource]bool, len(resources))
		for _, res := range resources {
			holds[res] = true
		}
		size, _ := strconv.ParseInt(l.Labels[labelRetainSize], 10, 64)
		held[l.ID] = retained{root: digest.Digest(l.Labels[labelRetainRoot]), size: size, holds: holds}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	return nil
}

// retain holds the image of an entry, unless no pin retains it any more. A lease of the caller must hold its content. It
// fails with [imagepin.RetainLimitReached] (ErrResourceExhausted).
func (r *Retainer) retain(ctx context.Context, e imagepin.Entry) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if !r.Pins.Retains(e.Root.Digest) {
		return nil // the pin is gone by now
	}
	l := leases.Lease{ID: leaseID(e)}
	resources, err := r.resources(ctx, e)
	if err != nil {
		return err
	}
	if err := r.create(ctx, l.ID, e); err != nil {
		return err
	}
	for _, res := range resources {
		failpoint.Reach("retain.add")
		if err := r.Leases.AddResource(ctx, l, res); err != nil {
			return fmt.Errorf("retain %s of %s: %w", res.ID, e.Root.Digest, err)
		}
		r.mu.Lock()
		r.held[l.ID].holds[res] = true
		r.mu.Unlock()
	}
	failpoint.Reach("retain.done")
	return nil
}

// leaseID names the lease of an entry: one for each root and manifest, since a
// manifest can be in several indexes, and each can have a pin.
func leaseID(e imagepin.Entry) string {
	if e.Root.Digest == e.Manifest {
		return retainPrefix + e.Manifest.Encoded()
	}
	return retainPrefix + digest.FromString(e.Root.Digest.String()+" "+e.Manifest.String()).Encoded()
}

// create makes the lease of an entry, unless there is one.
func (r *Retainer) create(ctx context.Context, id string, e imagepin.Entry) error {
	if known, err := r.claim(id, e); known || err != nil {
		return err
	}
	_, err := r.Leases.Create(ctx, leases.WithID(id), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel: retainPurpose,
		labelRetainRoot:     e.Root.Digest.String(),
		labelRetainSize:     strconv.FormatInt(e.Size, 10),
	}))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		r.forget(id)
		return fmt.Errorf("retain %s: %w", e.Root.Digest, err)
	}
	failpoint.Reach("retain.leased")
	return nil
}

// claim notes that a lease is about to be made. known tells that there is one.
func (r *Retainer) claim(id string, e imagepin.Entry) (known bool, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.held[id]; known {
		return true, nil
	}
	nothing := func(digest.Digest) bool { return false }
	if err := r.room(e, r.total(id, nothing)); err != nil {
		return false, err
	}
	if r.held == nil {
		r.held = make(map[string]retained)
	}
	r.held[id] = retained{root: e.Root.Digest, size: e.Size, holds: make(map[leases.Resource]bool)}
	return false, nil
}

// forget notes that a lease is gone.
func (r *Retainer) forget(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, id)
}

// resources lists what there is of an image.
func (r *Retainer) resources(ctx context.Context, e imagepin.Entry) ([]leases.Resource, error) {
	// Docker's manifests read the same.
	manifest := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: e.Manifest}
	m, err := images.Manifest(ctx, r.Content, manifest, platforms.All)
	if err != nil {
		return nil, fmt.Errorf("retain %s: %w", e.Root.Digest, err)
	}
	blobs := []digest.Digest{e.Root.Digest, e.Manifest, m.Config.Digest}
	for _, l := range m.Layers {
		blobs = append(blobs, l.Digest)
	}
	var all []leases.Resource
	for _, d := range blobs {
		// A lease takes what does not exist, and then holds nothing.
		if _, err := r.Content.Info(ctx, d); err == nil {
			all = append(all, leases.Resource{ID: d.String(), Type: "content"})
		}
	}
	return append(all, last(e)), nil
}

// last is the resource that an entry's lease is given last: where it is held,
// everything is.
func last(e imagepin.Entry) leases.Resource {
	if e.ChainID == "" {
		return leases.Resource{ID: e.ImageID.String(), Type: "content"}
	}
	return leases.Resource{ID: e.ChainID.String(), Type: "snapshots/" + e.Target.Snapshotter}
}

// release deletes the leases of digests that no pin retains. What they held is collected later.
func (r *Retainer) release(ctx context.Context) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	unwanted := r.unwanted()
	for _, id := range unwanted {
		failpoint.Reach("retain.release")
		if err := r.Leases.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("release what is retained: %w", err)
		}
		failpoint.Reach("retain.dropped")
		r.forget(id)
	}
	if len(unwanted) > 0 {
		r.Released()
	}
	return nil
}

// unwanted returns the leases of digests that no pin retains.
func (r *Retainer) unwanted() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id, h := range r.held {
		if !r.Pins.Retains(h.root) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Holds reports whether an entry's manifest is held with its snapshot for the entry's target.
func (r *Retainer) Holds(e imagepin.Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[leaseID(e)].holds[last(e)]
}

// Bytes is how much is held, as the registry has it.
func (r *Retainer) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var total int64
	for _, h := range r.held {
		total += h.size
	}
	return total
}
