package pin

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// unreadable is a record in the namespace of pins that cannot be read as a pin.
type unreadable struct {
	// err is the reason. It is ErrNotImplemented for a record of a newer version, which is never overwritten, and
	// ErrInvalidArgument for a damaged one, which a new pin replaces.
	err     error
	target  ocispec.Descriptor
	retains bool
}

// CheckReadable returns [imagepin.PinOfNewerRelease] (ErrNotImplemented) if a newer release wrote the pin. Its digest
// is unknown, and it must not be overwritten.
func (s *table) CheckReadable(id ID) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if u, ok := s.ignored[id.String()]; ok && errdefs.IsNotImplemented(u.err) {
		return newerError(id, u.err)
	}
	return nil
}

func newerError(id ID, err error) error {
	return &imagepin.Error{
		Reason: imagepin.PinOfNewerRelease, Ref: id.Ref, Class: errdefs.ErrNotImplemented, Err: err,
		Message: fmt.Sprintf("its pin in scope %s was written by a newer release of imagepin, and this one cannot read it", id.Scope),
		Hint:    fmt.Sprintf("Install the newer release again, or remove the pin: imagepin pin rm %s --scope %s", id.Ref, id.Scope),
	}
}

// ignore adds an unreadable record. Its target stays retained. The caller holds the mutex.
func (s *table) ignore(img images.Image, err error) {
	u := unreadable{err: err, target: plain(img.Target), retains: img.Labels[labelRetain] == "true"}
	s.ignored[img.Name] = u
	if u.retains {
		count(s.retained, u.target.Digest, 1)
	}
}

// clearIgnored removes an unreadable record from memory. The caller holds the mutex.
func (s *table) clearIgnored(record string) {
	u, ok := s.ignored[record]
	if !ok {
		return
	}
	delete(s.ignored, record)
	if u.retains {
		count(s.retained, u.target.Digest, -1)
	}
}

// removeUnreadable removes the unreadable record of a pin. It returns unknown if there is none.
func (s *Store) removeUnreadable(ctx context.Context, id ID, unknown error) (Pin, error) {
	if err := s.write.Lock(ctx, id.String()); err != nil {
		return Pin{}, err
	}
	defer s.write.Unlock(id.String())
	s.mu.RLock()
	u, ok := s.ignored[id.String()]
	s.mu.RUnlock()
	if !ok {
		return Pin{}, unknown
	}
	if err := s.unrecord(ctx, id); err != nil {
		return Pin{}, err
	}
	s.set(id, nil)
	p := Pin{ID: id, Root: u.target, Retain: u.retains}
	s.config.Notify(ctx, Removed, p, digest.Digest(""))
	return p, nil
}
