package applied

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

const (
	labelLock     = imagepin.LabelPrefix + "lock"
	labelPrevious = imagepin.LabelPrefix + "lock.previous"
	ingest        = "imagepin-applied-lock"
	// maxBlob is the maximum size of a State on disk in bytes: two locks, with their descriptors, as JSON.
	maxBlob = 64 << 20
)

// Pins has the pins of the node. [pin.Store] implements it.
type Pins interface {
	// SetLock replaces the pins of the lock, and the digests that are retained without a pin.
	SetLock(pins []pin.Pin, kept []digest.Digest)
}

// Config has the dependencies of a Store. All fields are required.
type Config struct {
	Images     images.Store
	Content    content.Store
	Leases     leases.Manager
	Namespaces pin.Namespaces
	Pins       Pins
	// Retain updates what pins retain after digests were added or removed.
	Retain func(ctx context.Context, roots ...digest.Digest) error
	// Retained returns the digests of which content is retained now, from containerd.
	Retained func(ctx context.Context) ([]digest.Digest, error)
}

// Store has the lock of a node. It is safe for concurrent use.
type Store struct {
	config Config

	record sync.Mutex // held while the record is read or written, and the state is replaced

	mu       sync.RWMutex
	state    State
	pending  []digest.Digest // of the last Keep
	retained []digest.Digest // while the record cannot be read
	named    map[string]bool // images of the current lock, as repository@digest
	err      error           // why the record cannot be read
	unsynced bool            // what the pins retain was not updated after the last Write
	loaded   bool
}

// New returns a store without a lock. [Store.Load] reads it.
func New(c Config) *Store { return &Store{config: c} }

func namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, pin.Namespace)
}

// Load reads the lock of the node. If it cannot be read, the node has no lock, everything that is retained stays so, and
// [Store.Err] returns the reason. Load fails if containerd does not answer. It keeps what [Store.Keep] retains.
func (s *Store) Load(ctx context.Context) error {
	s.record.Lock()
	defer s.record.Unlock()
	if !s.loaded {
		if err := lease.DeleteLeftovers(namespaced(ctx), s.config.Leases); err != nil {
			return err
		}
		s.loaded = true
	}
	img, err := s.config.Images.Get(namespaced(ctx), pin.LockRecord)
	if errdefs.IsNotFound(err) {
		s.set(State{}, nil, nil)
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the record of the lock: %w", err)
	}
	state, rerr := s.read(namespaced(ctx), img.Target)
	if rerr == nil {
		s.set(state, nil, nil)
		return nil
	}
	if errdefs.IsUnavailable(rerr) || errdefs.IsCanceled(rerr) || errdefs.IsDeadlineExceeded(rerr) || ctx.Err() != nil {
		return rerr
	}
	log.G(ctx).WithError(rerr).Error("the lock of this node cannot be read")
	retained, err := s.config.Retained(ctx)
	if err != nil {
		return err
	}
	s.set(State{}, retained, rerr)
	return nil
}

func (s *Store) read(ctx context.Context, d ocispec.Descriptor) (State, error) {
	if d.Size > maxBlob {
		return State{}, fmt.Errorf("the applied lock has %d bytes, the maximum is %d: %w", d.Size, maxBlob, errdefs.ErrInvalidArgument)
	}
	b, err := content.ReadBlob(ctx, s.config.Content, d)
	if err != nil {
		return State{}, fmt.Errorf("read the applied lock: %w", err)
	}
	if digest.FromBytes(b) != d.Digest {
		return State{}, fmt.Errorf("the applied lock does not match %s: %w", d.Digest, errdefs.ErrDataLoss)
	}
	return unmarshal(b)
}

// set replaces the state in memory. retained are digests that stay retained although no lock has them.
func (s *Store) set(state State, retained []digest.Digest, err error) {
	named := make(map[string]bool)
	if state.Current != nil {
		for _, i := range state.Current.Lock.Images {
			named[i.Ref.String()] = true
			for _, manifest := range i.Platforms {
				named[i.Ref.Name()+"@"+manifest.String()] = true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.named, s.retained, s.err = state, named, retained, err
	s.setPins()
}

// setPins replaces the pins of the lock by those of the state. Its caller holds mu.
func (s *Store) setPins() {
	s.config.Pins.SetLock(s.state.Current.pins(), slices.Concat(s.state.Previous.RootDigests(), s.retained, s.pending))
}

// Get returns the lock of the node.
func (s *Store) Get() State {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state
}

// Err returns why the lock of the node cannot be read, or nil.
func (s *Store) Err() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.err
}

// Names implements the interface Lock of package decide.
func (s *Store) Names(repository reference.Named, d digest.Digest) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.named[repository.Name()+"@"+d.String()]
}

// Digest returns the digest of the lock, or "".
func (s *Store) Digest() digest.Digest {
	if now := s.Get().Current; now != nil {
		return now.Digest
	}
	return ""
}

// Keep retains digests in addition to those of the locks, until the next Keep or Write, or a restart. It replaces those of the
// last Keep.
func (s *Store) Keep(ctx context.Context, roots []digest.Digest) error {
	s.mu.Lock()
	before := s.pending
	s.pending = slices.Clone(roots)
	s.setPins()
	s.mu.Unlock()
	return s.config.Retain(ctx, unique(slices.Concat(before, roots))...)
}

// writeTimeout bounds a Write, which does not stop when its caller has gone.
const writeTimeout = 30 * time.Second

// Write replaces the lock of the node. A kill, or the end of ctx, leaves the old or the new one. If Write succeeds, the new one
// is durable.
func (s *Store) Write(ctx context.Context, next State) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.record.Lock()
	defer s.record.Unlock()
	return s.write(ctx, next)
}

// write is Write for a caller that holds record.
func (s *Store) write(ctx context.Context, next State) error {
	// If it stopped here, the state in memory and the record could differ.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	if err := s.writeRecord(ctx, next); err != nil {
		return err
	}
	failpoint.Reach("lock.switched")
	last := s.Get()
	s.mu.Lock()
	roots := slices.Concat(s.pending, s.retained)
	s.pending = nil
	s.mu.Unlock()
	s.set(next, nil, nil)
	for _, a := range []*Applied{last.Current, last.Previous, next.Current, next.Previous} {
		roots = append(roots, a.RootDigests()...)
	}
	err := s.config.Retain(ctx, unique(roots)...)
	if err != nil {
		log.G(ctx).WithError(err).Warn("what the lock retains is not updated yet")
	}
	s.mu.Lock()
	s.unsynced = err != nil
	s.mu.Unlock()
	return nil
}

// writeRecord replaces the record of the lock and its blob. It removes them if there is no state.
func (s *Store) writeRecord(ctx context.Context, next State) error {
	if next.Current == nil && next.Previous == nil && next.Dropped == "" {
		err := s.config.Images.Delete(namespaced(ctx), pin.LockRecord, images.SynchronousDelete())
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the record of the lock: %w", err)
		}
		return nil
	}
	data, err := next.marshal()
	if err != nil {
		return err
	}
	if len(data) > maxBlob {
		return fmt.Errorf("the applied lock has %d bytes, the maximum is %d: %w", len(data), maxBlob, errdefs.ErrInvalidArgument)
	}
	err = s.config.Namespaces.Create(ctx, pin.Namespace, nil)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("create the namespace of pins: %w", err)
	}
	desc := ocispec.Descriptor{MediaType: MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return lease.With(namespaced(ctx), s.config.Leases, lease.Pull, func(ctx context.Context) error {
		if err := content.WriteBlob(ctx, s.config.Content, ingest, bytes.NewReader(data), desc); err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
		failpoint.Reach("lock.stored")
		return s.point(ctx, desc, next)
	})
}

// Repair writes the record of the lock again if another tool has removed or changed it, or removed its blob. It also updates
// what the lock retains if the last Write could not. It writes nothing otherwise.
func (s *Store) Repair(ctx context.Context) error {
	s.record.Lock()
	defer s.record.Unlock()
	s.mu.RLock()
	now, unread, unsynced := s.state, s.err != nil, s.unsynced
	s.mu.RUnlock()
	if unread || now.Current == nil && now.Previous == nil && !unsynced {
		return nil
	}
	if unsynced {
		return s.write(ctx, now)
	}
	data, err := now.marshal()
	if err != nil {
		return err
	}
	img, err := s.config.Images.Get(namespaced(ctx), pin.LockRecord)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("read the record of the lock: %w", err)
	}
	if err == nil && img.Target.Digest == digest.FromBytes(data) {
		_, err = s.config.Content.Info(namespaced(ctx), img.Target.Digest)
		if err == nil {
			return nil
		}
	}
	log.G(ctx).Warn("the record of the lock has been removed or changed, writing it again")
	return s.write(ctx, now)
}

func unique(roots []digest.Digest) []digest.Digest {
	slices.Sort(roots)
	return slices.Compact(roots)
}

// point makes the record of the lock target a blob.
func (s *Store) point(ctx context.Context, desc ocispec.Descriptor, next State) error {
	img := images.Image{Name: pin.LockRecord, Target: desc, Labels: map[string]string{labelLock: "", labelPrevious: ""}}
	if next.Current != nil {
		img.Labels[labelLock] = next.Current.Digest.String()
	}
	if next.Previous != nil {
		img.Labels[labelPrevious] = next.Previous.Digest.String()
	}
	_, err := s.config.Images.Update(ctx, img, "target", "labels."+labelLock, "labels."+labelPrevious)
	if errdefs.IsNotFound(err) {
		maps.DeleteFunc(img.Labels, func(_, value string) bool { return value == "" })
		_, err = s.config.Images.Create(ctx, img)
	}
	if err != nil {
		return fmt.Errorf("write the record of the lock: %w", err)
	}
	return nil
}
