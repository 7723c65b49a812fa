package retain_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/opencontainers/go-digest"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// counted are transactions of a metadata database, with their number.
type counted struct {
	db *metadata.DB
	n  int
}

func (c *counted) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	c.n++
	return c.db.Update(func(tx *bolt.Tx) error { return fn(boltutil.WithTransaction(ctx, tx), nil) })
}

// pinnedImages makes images that are pinned, but not retained yet.
func (e *env) pinnedImages(n int) (all []imagepin.Entry, roots []digest.Digest) {
	e.t.Helper()
	e.killed = true
	for i := range n {
		entry := e.image(fmt.Sprint("image ", i), first)
		e.pin(fmt.Sprint("v", i), entry)
		all, roots = append(all, entry), append(roots, entry.Root.Digest)
	}
	return all, roots
}

// TestSyncOfManyDigests checks that many digests, as those of a lock, are retained in few transactions.
func TestSyncOfManyDigests(t *testing.T) {
	e := newEnv(t)
	transactions := &counted{db: e.node.DB}
	e.transactions = transactions
	e.restart()
	all, roots := e.pinnedImages(130)
	if err := e.Sync(e.ctx, roots...); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "transactions", transactions.n, 2)
	e.remove(all...)
	e.restart()
	for _, entry := range all {
		e.wantHeld("image after a restart", entry, true)
		e.wantPresent("image after a restart", entry, true)
	}
}

// TestSyncOfManyDigestsWithOneUnreadable checks that one image that cannot be read does not keep the others from being retained,
// also if the transaction is rolled back.
func TestSyncOfManyDigestsWithOneUnreadable(t *testing.T) {
	e := newEnv(t)
	e.transactions = &counted{db: e.node.DB}
	e.restart()
	all, roots := e.pinnedImages(3)
	e.overwrite(all[1].Manifest, 'x')
	if err := e.Sync(e.ctx, roots...); err != nil {
		t.Fatal(err)
	}
	for i, entry := range all {
		wantEqual(t, fmt.Sprint("image ", i), e.Holds(entry), i != 1)
	}
}

// TestSyncAfterRollback checks that a batch that was rolled back is retained in steps.
func TestSyncAfterRollback(t *testing.T) {
	e := newEnv(t)
	e.transactions = &counted{db: e.node.DB}
	at := 7 // in the second image
	e.leases = ctdtest.Leases{Manager: e.node.Leases, Before: ctdtest.On("AddResource", func(string) error {
		if at--; at == 0 {
			return errors.New("no")
		}
		return nil
	})}
	e.restart()
	all, roots := e.pinnedImages(3)
	if err := e.Sync(e.ctx, roots...); err != nil {
		t.Fatal(err)
	}
	e.remove(all...)
	e.restart()
	for _, entry := range all {
		e.wantHeld("image", entry, true)
		e.wantPresent("image", entry, true)
	}
}
