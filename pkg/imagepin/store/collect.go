package store

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Collect runs containerd's garbage collection and waits for it. If the configuration of a removed image is still there,
// because another tool keeps it, Collect releases the image's snapshots and collects again.
func (s *writer) Collect(ctx context.Context) error {
	// A collection does not end while a snapshotter hangs.
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	if err := s.collect(ctx); err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	released, err := s.releaseKept(ctx)
	if err != nil || !released {
		return err
	}
	if err := s.collect(ctx); err != nil {
		return fmt.Errorf("collect garbage: %w", err)
	}
	return nil
}

// collect runs one collection. Removing a label does not trigger a collection, but the deletion of a lease does.
func (s *writer) collect(ctx context.Context) error {
	if s.config.Collect != nil {
		err := s.config.Collect(ctx)
		failpoint.Reach("collect.done")
		return err
	}
	l, err := s.config.Leases.Create(ctx, leases.WithRandomID(), leases.WithExpiration(time.Minute),
		leases.WithLabel(imagepin.LeaseLabel, "collect"))
	if err != nil {
		return err
	}
	failpoint.Reach("collect.leased")
	if err := s.config.Leases.Delete(ctx, l, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	failpoint.Reach("collect.done")
	return nil
}

// releaseKept releases the snapshots of removed images whose configurations were not collected. released is false if there
// are none. Most removals have none, so that they write one label less.
func (s *writer) releaseKept(ctx context.Context) (released bool, _ error) {
	unlock, err := s.lock(ctx)
	if errdefs.IsFailedPrecondition(err) {
		return false, nil // nothing is written any more
	}
	if err != nil {
		return false, err
	}
	defer unlock()
	for u := range s.unreleased {
		wrote, err := s.releaseUnpacked(ctx, u)
		if err != nil {
			return released, err
		}
		delete(s.unreleased, u)
		released = released || wrote
	}
	return released, nil
}
