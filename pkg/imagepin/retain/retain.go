package retain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
)

const (
	retainPrefix    = "imagepin-retain-"
	labelRetainSize = imagepin.LabelPrefix + "retain.bytes"
)

// Pins are the pins of the node. [pin.Store] implements it.
type Pins interface {
	// Retains reports whether a pin retains a digest.
	Retains(root digest.Digest) bool
	// HasRoot reports whether a digest is retained for the node's lock, and so does not count for MaxBytes.
	HasRoot(root digest.Digest) bool
	// Retained returns the digests that pins retain.
	Retained() []digest.Digest
	// RetainedBy returns the Kubernetes namespaces whose pins retain each digest. The name is empty for pins of the node.
	RetainedBy() map[digest.Digest][]string
	// Prove records the use of proofs on the pins that retain a digest of ref's repository.
	Prove(ctx context.Context, ref reference.Named, root digest.Digest, used ...imagepin.Proof) error
}

// Images are the images that are ready on the node. [store.Store] implements it.
type Images interface {
	// ByRoot returns the entries of a root digest, for all references and targets.
	ByRoot(root digest.Digest) []imagepin.Entry
	// Proofs returns the proofs on an image record.
	Proofs(record string) []imagepin.Proof
	// HasContent reports whether all content that an entry needs exists.
	HasContent(ctx context.Context, e imagepin.Entry) (bool, error)
	// AddReadyToLease adds the content and snapshots of images that are ready to the lease in ctx. It does not ask
	// snapshotters. It returns ErrNotFound if an image is not ready any more.
	AddReadyToLease(ctx context.Context, entries ...imagepin.Entry) error
}

// Config configures a Retainer. All fields but Unpacks are required.
type Config struct {
	Leases leases.Manager
	// Transactions are those of the database of Leases.
	Transactions lease.Transactions
	Content      content.Store
	Pins         Pins
	Images       Images
	// MaxBytes returns how many bytes may be retained, without those of the node's lock. The size of an image is that of its
	// content in the registry. Zero means no limit.
	MaxBytes func() int64
	// Unpacks reports whether a runtime handler uses a snapshotter. Nil means that all are used.
	Unpacks func(snapshotter string) bool
	// Released is called after leases were deleted, to start a garbage collection. It must not wait for the collection.
	Released func()
}

// Retainer holds the content of pins. It is safe for concurrent use.
type Retainer struct {
	config Config
	write  *semaphore.Weighted // allows one writer at a time

	mu       sync.Mutex          // not held during calls to containerd
	held     map[string]retained // by lease ID
	reserved map[*reservation]struct{}
}

// New returns a retainer. [Retainer.SyncAll] must be called first.
func New(c Config) *Retainer {
	if c.Unpacks == nil {
		c.Unpacks = func(string) bool { return true }
	}
	return &Retainer{config: c, write: semaphore.NewWeighted(1)}
}

// lock makes the caller the only writer until it calls unlock.
func (r *Retainer) lock(ctx context.Context) (unlock func(), _ error) {
	if err := r.write.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}
	return func() { r.write.Release(1) }, nil
}

type retained struct {
	root  digest.Digest
	size  int64
	holds map[leases.Resource]bool // nil if the lease may be gone
}

// load reads the leases and their resources. A lease can be incomplete after a kill.
func (r *Retainer) load(ctx context.Context) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	all, err := lease.Retained(ctx, r.config.Leases)
	if err != nil {
		return err
	}
	held := make(map[string]retained, len(all))
	for _, l := range all {
		resources, err := r.config.Leases.ListResources(ctx, l)
		if err != nil {
			return fmt.Errorf("list resources of lease %s: %w", l.ID, err)
		}
		holds := make(map[leases.Resource]bool, len(resources))
		for _, res := range resources {
			holds[res] = true
		}
		size, _ := strconv.ParseInt(l.Labels[labelRetainSize], 10, 64)
		size = max(size, 0)
		held[l.ID] = retained{root: digest.Digest(l.Labels[lease.RetainRootLabel]), size: size, holds: holds}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = held
	return nil
}

// leaseID returns the ID of an entry's lease. Each pair of root and manifest has a lease of its own, because several
// indexes can have the same manifest, and each of them can have a pin.
func leaseID(e imagepin.Entry) string {
	if e.Root.Digest == e.Manifest {
		return retainPrefix + e.Manifest.Encoded()
	}
	return retainPrefix + digest.FromString(e.Root.Digest.String()+" "+e.Manifest.String()).Encoded()
}

// create creates the lease of an entry if it does not exist. known reports that it did.
func (r *Retainer) create(ctx context.Context, id string, e imagepin.Entry) (known bool, _ error) {
	if known, err := r.claim(id, e); known || err != nil {
		return known, err
	}
	_, err := r.config.Leases.Create(ctx, leases.WithID(id), leases.WithLabels(map[string]string{
		imagepin.LeaseLabel:   string(lease.Retain),
		lease.RetainRootLabel: e.Root.Digest.String(),
		labelRetainSize:       strconv.FormatInt(e.Size, 10),
	}))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		r.forget(id)
		return false, fmt.Errorf("retain %s: %w", e.Root.Digest, err)
	}
	failpoint.Reach("retain.leased")
	return false, nil
}

// claim notes that a lease is about to be created. known reports whether it exists.
func (r *Retainer) claim(id string, e imagepin.Entry) (known bool, _ error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if h, ok := r.held[id]; ok && h.holds != nil {
		return true, nil
	}
	nothing := func(digest.Digest) bool { return false }
	if err := r.room(e, r.total(id, nothing, arrived)); err != nil {
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

// errUnreadable means that the content of an image cannot be read. It does not concern other images.
var errUnreadable = errors.New("its content cannot be read")

// manifest returns the manifest of an image. It returns ErrNotFound if content that the image needs is gone, and
// errUnreadable.
func (r *Retainer) manifest(ctx context.Context, e imagepin.Entry) (m ocispec.Manifest, _ error) {
	here, err := r.config.Images.HasContent(ctx, e)
	if err == nil && !here {
		return m, fmt.Errorf("retain %s: content of %s is gone: %w", e.Root.Digest, e.Key, errdefs.ErrNotFound)
	}
	if err == nil {
		m, err = blobs.Manifest(ctx, r.config.Content, e.Manifest)
	}
	if err != nil {
		return m, fmt.Errorf("retain %s: %w: %w", e.Root.Digest, errUnreadable, err)
	}
	return m, nil
}

// resources returns the existing content of an image, and its snapshot or configuration as the last resource. It fails
// as manifest does.
func (r *Retainer) resources(ctx context.Context, e imagepin.Entry) ([]leases.Resource, error) {
	m, err := r.manifest(ctx, e)
	if err != nil {
		return nil, err
	}
	digests := []digest.Digest{e.Root.Digest, e.Manifest, m.Config.Digest}
	for _, l := range m.Layers {
		digests = append(digests, l.Digest)
	}
	var all []leases.Resource
	for _, d := range digests {
		// A lease accepts a resource that does not exist, but then does not hold it.
		if _, err := r.config.Content.Info(ctx, d); err == nil {
			all = append(all, leases.Resource{ID: d.String(), Type: upstream.ContentType})
		}
	}
	return append(all, lastResource(e)), nil
}

// lastResource returns the resource that is added last to an entry's lease. If the lease has it, the lease is complete.
func lastResource(e imagepin.Entry) leases.Resource {
	if e.ChainID == "" {
		return leases.Resource{ID: e.ImageID.String(), Type: upstream.ContentType}
	}
	return leases.Resource{ID: e.ChainID.String(), Type: upstream.SnapshotType + e.Target.Snapshotter}
}

// release deletes the leases of digests that no pin retains. Their content is collected later.
func (r *Retainer) release(ctx context.Context) error {
	unlock, err := r.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	unneeded := r.unneeded()
	for _, id := range unneeded {
		failpoint.Reach("retain.release")
		if err := r.config.Leases.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("delete retain lease: %w", err)
		}
		failpoint.Reach("retain.dropped")
		r.forget(id)
	}
	if len(unneeded) > 0 {
		r.config.Released()
	}
	return nil
}

// unneeded returns the IDs of the leases of digests that no pin retains. From then on, Holds does not report what they
// hold, so that a Sync for a pin that is created before they are deleted creates them again.
func (r *Retainer) unneeded() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id, h := range r.held {
		if !r.config.Pins.Retains(h.root) {
			ids = append(ids, id)
			h.holds = nil
			r.held[id] = h
		}
	}
	slices.Sort(ids)
	return ids
}

// Holds reports whether a lease holds an entry's manifest with its snapshot for the entry's target.
func (r *Retainer) Holds(e imagepin.Entry) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[leaseID(e)].holds[lastResource(e)]
}

// Bytes returns how many bytes are retained, without those of the node's lock. The size of an image is that of its content in the registry.
func (r *Retainer) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var total int64
	for _, h := range r.held {
		if !r.config.Pins.HasRoot(h.root) {
			total = imagepin.AddSize(total, h.size)
		}
	}
	return total
}
