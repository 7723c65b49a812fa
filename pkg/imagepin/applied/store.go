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
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

const (
	labelLock     = imagepin.LabelPrefix + "lock"
	labelPrevious = imagepin.LabelPrefix + "lock.previous"
	// ingestPrefix begins the names of what is written to the content store. The digest follows: a write that was killed must
	// not continue with other content.
	ingestPrefix = "imagepin-applied-lock-"
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
	// Sync makes what is written to the content store durable.
	Sync func(context.Context) error
	// Retained returns the digests of which content is retained now, from containerd.
	Retained func(ctx context.Context) ([]digest.Digest, error)
}

// Store has the lock of a node. It is the only one that writes it. It is safe for concurrent use.
type Store struct {
	config Config
	write  sync.Mutex // held by Load, Keep, Write and Repair, also during calls to containerd

	mu      sync.RWMutex
	loaded  bool
	state   State
	pending []digest.Digest // of the last Keep
	rescued []digest.Digest // what was retained when the record could not be read
	named   map[string]bool // images of the current lock, as repository@digest
	// copies are the repositories of the images of the current lock whose tag is in another repository, by repository of the tag
	// and digest.
	copies map[string][]reference.Named
	err    error // why the record cannot be read
	// unsynced reports that what the lock retains was not updated after the last write.
	unsynced bool
}

// New returns a store without a lock. [Store.Load] reads it.
func New(c Config) *Store { return &Store{config: c} }

func namespaced(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, pin.Namespace)
}

// Load reads the lock of the node. If it cannot be read, the node has no lock, everything that is retained stays so, and
// [Store.Err] returns the reason. Load fails if containerd does not answer. It reads nothing if it has read the lock before,
// because no other process writes it: then it does not wait for a Keep or a Write either, for which all calls of a node whose
// configuration is reloaded would wait.
func (s *Store) Load(ctx context.Context) error {
	if s.isLoaded() {
		return nil
	}
	s.write.Lock()
	defer s.write.Unlock()
	if s.isLoaded() {
		return nil
	}
	if _, err := lease.DeleteLeftovers(namespaced(ctx), s.config.Leases); err != nil {
		return err
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
	if ctx.Err() != nil || errdefs.IsUnavailable(rerr) || errdefs.IsCanceled(rerr) || errdefs.IsDeadlineExceeded(rerr) {
		return rerr // the lock may be readable
	}
	log.G(ctx).WithError(rerr).Error("the lock of this node cannot be read")
	retained, err := s.config.Retained(ctx)
	if err != nil {
		return err
	}
	s.set(State{}, retained, rerr)
	return nil
}

func (s *Store) isLoaded() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.loaded && s.err == nil
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

// set replaces the state in memory. rescued are digests that are retained although no lock has them.
func (s *Store) set(state State, rescued []digest.Digest, err error) {
	named, copies := make(map[string]bool), make(map[string][]reference.Named)
	if state.Current != nil {
		for _, i := range state.Current.Lock.Images {
			if tag, ok := i.Tag(); ok && tag.Name() != i.Ref.Name() {
				of := tag.Name() + "@" + i.Ref.Digest().String()
				copies[of] = append(copies[of], reference.TrimNamed(i.Ref))
			}
			for _, repository := range repositories(i) {
				named[repository+"@"+i.Ref.Digest().String()] = true
				for _, manifest := range i.Platforms {
					named[repository+"@"+manifest.String()] = true
				}
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loaded, s.state, s.named, s.copies, s.rescued, s.err = true, state, named, copies, rescued, err
	s.setPins()
}

// repositories returns the repository of an image, and that of the tag that it was locked for.
func repositories(i lock.Image) []string {
	all := []string{i.Ref.Name()}
	if tag, ok := i.Tag(); ok && tag.Name() != i.Ref.Name() {
		all = append(all, tag.Name())
	}
	return all
}

// setPins sets the pins of the lock and what is retained for it. The caller holds mu, so that the pins and the state change in
// the same order.
func (s *Store) setPins() {
	s.config.Pins.SetLock(s.state.Current.pins(), slices.Concat(s.state.Previous.rootDigests(), s.pending, s.rescued))
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

// Copies implements the interface Lock of package decide.
func (s *Store) Copies(repository reference.Named, d digest.Digest) []reference.Named {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if len(s.copies) == 0 {
		return nil
	}
	return s.copies[repository.Name()+"@"+d.String()]
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
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.Lock()
	before := s.pending
	s.pending = slices.Clone(roots)
	s.setPins()
	s.mu.Unlock()
	return s.config.Retain(ctx, unique(slices.Concat(before, roots))...)
}

// switchTimeout bounds the write of a lock, which goes on when its caller has gone.
const switchTimeout = 30 * time.Second

// Write replaces the lock of the node. A kill leaves the old or the new one. Both are durable before Write returns. If it fails,
// the node has the old one.
func (s *Store) Write(ctx context.Context, next State) error {
	s.write.Lock()
	defer s.write.Unlock()
	return s.replace(ctx, next)
}

// replace is Write for a caller that holds write.
func (s *Store) replace(ctx context.Context, next State) error {
	data, err := next.marshal()
	if err != nil {
		return err
	}
	if len(data) > maxBlob {
		return fmt.Errorf("the applied lock has %d bytes, the maximum is %d: %w", len(data), maxBlob, errdefs.ErrInvalidArgument)
	}
	if _, err := unmarshal(data); err != nil {
		return err // the next start could not read it
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	writing, cancel := context.WithTimeout(context.WithoutCancel(ctx), switchTimeout)
	defer cancel()
	if err := s.writeRecord(writing, data, next); err != nil {
		return err
	}
	failpoint.Reach("lock.switched")
	s.mu.RLock()
	roots := slices.Concat(s.pending, s.rescued)
	for _, a := range []*Applied{s.state.Current, s.state.Previous, next.Current, next.Previous} {
		roots = append(roots, a.rootDigests()...)
	}
	s.mu.RUnlock()
	s.mu.Lock()
	s.pending = nil
	s.mu.Unlock()
	s.set(next, nil, nil)
	err = s.config.Retain(ctx, unique(roots)...)
	if err != nil {
		// The lock is replaced. What it retains was retained before, and a later attempt releases the rest.
		log.G(ctx).WithError(err).Warn("what the lock retains is not updated, trying again later")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsynced = err != nil
	return nil
}

// writeRecord writes the blob of a state, and makes the record of the lock target it. It removes both if the state is empty.
func (s *Store) writeRecord(ctx context.Context, data []byte, next State) error {
	if next.Current == nil && next.Previous == nil && next.Dropped == "" {
		err := s.config.Images.Delete(namespaced(ctx), pin.LockRecord)
		if err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("remove the record of the lock: %w", err)
		}
		return nil
	}
	err := s.config.Namespaces.Create(ctx, pin.Namespace, nil)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("create the namespace of pins: %w", err)
	}
	desc := ocispec.Descriptor{MediaType: MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	return lease.With(namespaced(ctx), s.config.Leases, lease.Pull, func(ctx context.Context) error {
		if err := content.WriteBlob(ctx, s.config.Content, ingestPrefix+desc.Digest.String(), bytes.NewReader(data), desc); err != nil {
			return fmt.Errorf("write the lock: %w", err)
		}
		if err := s.config.Sync(ctx); err != nil { // a write is synced, but not the name of its file
			return fmt.Errorf("write the lock: %w", err)
		}
		failpoint.Reach("lock.stored")
		return s.point(ctx, desc, next)
	})
}

// Repair writes the record of the lock again if another tool has removed or changed it, or removed its blob. It also updates
// what the lock retains if the last write could not. It writes nothing otherwise.
func (s *Store) Repair(ctx context.Context) error {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.RLock()
	now, unread, unsynced := s.state, s.err != nil, s.unsynced
	s.mu.RUnlock()
	switch {
	case unread:
		return nil
	case unsynced:
		return s.replace(ctx, now)
	case now.Current == nil && now.Previous == nil:
		return nil
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
	return s.replace(ctx, now)
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
