package store

import (
	"context"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// What the tests look at from outside the package: they use package health, which imports it.
const (
	KeysARecord      = keysARecord
	MaxProofsARecord = maxProofsARecord
	CRIManagedLabel  = criManagedLabel
	CRIManagedValue  = criManagedValue
	CRIPinnedLabel   = criPinnedLabel
	CRIPinnedValue   = criPinnedValue
)

var ProofsOn = proofsOn

// Forget takes a key out of the index.
func (s *Store) Forget(e imagepin.Entry) { s.index.replace([]imagepin.Entry{e}, nil) }

// Lock makes the caller the only writer.
func (s *Store) Lock(ctx context.Context) (unlock func(), _ error) { return s.lock(ctx) }
