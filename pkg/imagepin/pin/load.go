package pin

import (
	"context"
	"fmt"
	"maps"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// Load reads all pins. It logs and ignores records that it cannot read. The target
// of such a record stays retained if its label says so. If Load fails, the pins stay as they are.
//
// Load takes the mutex of no pin. What other calls write while it lists the records takes precedence over the list.
func (s *Store) Load(ctx context.Context) error {
	err := s.config.Namespaces.Create(ctx, Namespace, nil)
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("create the namespace of pins: %w", err)
	}
	if err := s.loads.Lock(ctx, Namespace); err != nil {
		return err
	}
	defer s.loads.Unlock(Namespace)
	s.watchWrites(make(map[string]bool))
	defer s.watchWrites(nil)
	all, err := s.config.Images.List(namespaced(ctx))
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	s.replaceAll(ctx, all)
	return nil
}

// watchWrites sets where noteWrite notes writes. With nil it notes none.
func (s *table) watchWrites(written map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = written
}

// noteWrite notes that a record was written or deleted. The list of a running Load may have its earlier state. The
// caller holds the mutex of the pin, and then calls set.
func (s *table) noteWrite(record string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.written != nil {
		s.written[record] = true
	}
}

// replaceAll replaces the pins with those of listed records. A pin whose record was written since the list began stays
// as it is, and so does a pin that equals its record, because a record only has the day of the last use.
func (s *table) replaceAll(ctx context.Context, listed []images.Image) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := maps.Clone(s.pins)
	clear(s.pins)
	clear(s.byRef)
	clear(s.retained)
	clear(s.proofs)
	clear(s.perNamespace)
	clear(s.ignored)
	for _, held := range before {
		if s.written[held.ID.String()] {
			s.add(held)
		}
	}
	for _, img := range listed {
		if img.Name == LockRecord || s.written[img.Name] {
			continue
		}
		p, err := read(img)
		if err != nil {
			log.G(ctx).WithError(err).Warn("ignoring unreadable pin")
			s.ignore(img, err)
			continue
		}
		if held, ok := before[p.ID]; ok && sameFacts(p, held) {
			p = held
		}
		s.add(p)
	}
}
