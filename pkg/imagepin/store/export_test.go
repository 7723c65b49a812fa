package store

import (
	"context"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Tests in package store_test use these. They are not in this package because they use health, which imports it.
const (
	MaxKeysPerRecord = maxKeysPerRecord
	CRIManagedLabel  = upstream.ImageLabel
	CRIManagedValue  = upstream.Managed
	CRIPinnedLabel   = upstream.PinnedLabel
	CRIPinnedValue   = upstream.Pinned
)

// Forget removes a key from the index.
func (s *Store) Forget(e imagepin.Entry) { s.index.replace([]imagepin.Entry{e}, nil) }

// Configuration returns the configuration of a store, so that tests can change it.
func (s *Store) Configuration() *Config { return &s.config }

// Lock makes the caller the only writer.
func (s *Store) Lock(ctx context.Context) (unlock func(), _ error) { return s.lock(ctx) }
