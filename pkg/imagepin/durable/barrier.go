package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Barrier makes directories durable. It is safe for concurrent use.
type Barrier struct {
	mu          sync.Mutex
	directories map[string]*directory // by path
	snapshots   map[string]*Snapshots // by the snapshotter's directory

	patience time.Duration // of SyncTrees

	ordered func(*os.File) bool // reports whether a file system keeps the order of changes
	// writeData writes the data of a file, and fsync also what else changed before. ranges reports whether writeData does without fsync.
	writeData, fsync func(fd int) error
	ranges           func() bool
}

// New returns a Barrier without directories.
func New() *Barrier {
	return &Barrier{
		directories: make(map[string]*directory), snapshots: make(map[string]*Snapshots),
		patience: patience, ordered: ordered, writeData: writeData, fsync: fsync, ranges: writesRanges,
	}
}

// Open opens a directory. The kernel reports to [Barrier.Sync] the errors of all writes since then, so call it before the first
// write. Open does nothing for an open directory. It fails with the error of open(2).
func (b *Barrier) Open(path string) error {
	_, err := b.open(path)
	return err
}

// Sync writes everything that was written to the file systems of directories before the call to their disks, with its metadata,
// see syncfs(2). Calls for one file system that wait at the same time share a sync. If a disk fails, all of them fail, also if
// it lost the data of another process.
//
// Sync returns when ctx ends, with its cause. It fails with ErrUnavailable if a disk fails, and with the error of open(2).
func (b *Barrier) Sync(ctx context.Context, paths ...string) error {
	var synced []*rounds
	for _, path := range paths {
		d, err := b.open(path)
		if err != nil {
			return err
		}
		if slices.Contains(synced, d.sync) {
			continue
		}
		synced = append(synced, d.sync)
		if err := wait(ctx, d.sync, "the file system of "+path); err != nil {
			return err
		}
	}
	return nil
}

// SyncNames writes the names of the files in directories to their disks, see fsync(2). It is for files whose writer has synced
// them, and then renamed them. It waits for less than [Barrier.Sync], and fails as that does.
func (b *Barrier) SyncNames(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		d, err := b.open(path)
		if err != nil {
			return err
		}
		if err := wait(ctx, d.names, path); err != nil {
			return err
		}
	}
	return nil
}

func wait(ctx context.Context, r *rounds, what string) error {
	err := r.wait(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return described(err, what)
}

// described describes the error of a disk, or returns nil.
func described(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("write %s to its disk: %w: %w", what, err, errdefs.ErrUnavailable)
}

// directory is an open directory.
type directory struct {
	file  *os.File
	names *rounds // of the directory
	sync  *rounds // of the directory's file system
	slots slots   // of the directory's file system
}

func (b *Barrier) open(path string) (*directory, error) {
	if path == "" {
		return nil, fmt.Errorf("the directory is not known: %w", errdefs.ErrNotFound)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if d := b.directories[path]; d != nil {
		return d, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	of, err := f.Stat()
	if err == nil && !of.IsDir() {
		err = fmt.Errorf("%s is not a directory: %w", path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d := &directory{file: f, names: &rounds{do: f.Sync}, sync: &rounds{do: func() error { return syncfs(f) }}, slots: make(slots, maxWrites)}
	for _, o := range b.directories {
		if sameFileSystem(o.file, f) {
			d.sync, d.slots = o.sync, o.slots
		}
	}
	b.directories[path] = d
	return d, nil
}
