package durable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/kernelversion"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ordered reports whether a file system is known to write its changes of names, owners, modes and times to the disk in their order:
// an fsync makes all of them durable that are earlier. ext4 with a journal and XFS do (Documentation/filesystems/ext4/journal.rst and
// xfs/xfs-delayed-logging-design.rst). btrfs has a log of its own for each fsync.
func ordered(f *os.File) bool {
	var system unix.Statfs_t
	var of unix.Stat_t
	if unix.Fstatfs(int(f.Fd()), &system) != nil || unix.Fstat(int(f.Fd()), &of) != nil {
		return false
	}
	switch system.Type {
	case unix.XFS_SUPER_MAGIC:
		return true
	case unix.EXT4_SUPER_MAGIC: // also of ext2
		device, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(of.Dev), unix.Minor(of.Dev)))
		return err == nil && hasJournal(filepath.Join("/sys/fs/ext4", filepath.Base(device)))
	}
	return false
}

// hasJournal reports whether an ext4 file system has a journal, by its directory in sysfs, see
// Documentation/ABI/testing/sysfs-fs-ext4. It has none if that cannot be read.
func hasJournal(dir string) bool {
	task, err := os.ReadFile(filepath.Join(dir, "journal_task"))
	return err == nil && strings.TrimSpace(string(task)) != "<none>"
}

// syncTrees makes directories and all that is in them durable. They are in the directory parent, whose name in its own parent becomes
// durable too. It waits for no data of another file. It writes the data of the regular files, changes parent, and calls fsync on parent:
// that makes all changes durable which were made before, among them names, and where the data is, and flushes the cache of the disk.
// Of a tree whose layer is written, it writes only the files beside the layer's: a snapshotter may have made them since.
//
// It fails with ErrUnavailable if a disk fails, with the cause of ctx if that ends, and with the error of open(2) if a directory
// is gone. It fails with ErrNotImplemented if a file system does not keep the order of changes.
func (b *Barrier) syncTrees(ctx context.Context, parent string, trees ...*Tree) error {
	in, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer in.Close()
	if !b.ordered(in) {
		return fmt.Errorf("the file system of %s does not keep the order of changes: %w", parent, errdefs.ErrNotImplemented)
	}
	dev, err := deviceOf(parent)
	if err != nil {
		return err
	}
	written, err := waitFor(ctx, trees)
	if err != nil {
		return err
	}
	return b.inSlot(ctx, parent, func() error {
		w := b.newWrite(ctx)
		for i, t := range trees {
			if err == nil {
				err = w.walk(unix.AT_FDCWD, t.path, t.path, dev, !written[i])
			}
		}
		if err := w.end(err); err != nil {
			return err
		}
		if err := os.Chtimes(parent, time.Time{}, time.Now()); err != nil {
			return err
		}
		return described(b.fsync(int(in.Fd())), parent)
	})
}

// writeTree writes the data of the regular files in a directory of a snapshot. It fails as [Barrier.syncTrees] does.
func (b *Barrier) writeTree(path string) error {
	parent := filepath.Dir(path)
	dev, err := deviceOf(parent)
	if err != nil {
		return err
	}
	return b.inSlot(context.Background(), parent, func() error {
		w := b.newWrite(context.Background())
		return w.end(w.walk(unix.AT_FDCWD, path, path, dev, true))
	})
}

// deviceOf returns the device of a directory's file system.
func deviceOf(path string) (uint64, error) {
	var of unix.Stat_t
	if err := unix.Stat(path, &of); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return of.Dev, nil
}

const (
	// maxWrites is how many images and layers are written at once in a file system.
	maxWrites = 8
	// aheadFiles is how many files are open whose data the kernel has begun to write.
	aheadFiles = 128
	// aheadSyncs is the same where each file needs an fsync. Those that are called at the same time share a flush.
	aheadSyncs = 32
)

// write writes files, and waits for them in their order. The kernel writes those at the same time that are open. It is used by one
// goroutine: to wake another one for each file takes more processor time than to write a small file.
type write struct {
	ctx       context.Context
	ranges    bool
	writeData func(fd int) error
	open      []opened // oldest first
	linked    map[uint64]bool
}

// opened is an open file.
type opened struct {
	fd     int
	path   string
	synced chan error // has the result of fsync; nil if that was not called
	failed error      // if the kernel could not begin to write
}

// slots has an element for each write of a file system. A call of the kernel cannot be canceled: a disk that does not answer keeps no more
// writes than that, each with its open files.
type slots chan struct{}

// inSlot calls do when a slot of the snapshotter's file system is free, whose snapshots are in the directory parent.
func (b *Barrier) inSlot(ctx context.Context, parent string, do func() error) error {
	d, err := b.open(filepath.Dir(parent))
	if err != nil {
		return err
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
		return do()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (b *Barrier) newWrite(ctx context.Context) *write {
	return &write{ctx: ctx, ranges: b.ranges(), writeData: b.writeData, linked: make(map[uint64]bool)}
}

// end waits for the files, and closes them. failed is why nothing more was put, if that is not all.
func (w *write) end(failed error) error {
	for len(w.open) > 0 {
		failed = w.endOldest(failed)
	}
	return failed
}

// put begins to write a file, and closes it when it is written.
func (w *write) put(f opened) error {
	limit := aheadFiles
	if w.ranges {
		// It does not wait for the disk to have written.
		if err := unix.SyncFileRange(f.fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE); !errors.Is(err, unix.EINTR) {
			f.failed = os.NewSyscallError("sync_file_range", err)
		}
	} else {
		limit, f.synced = aheadSyncs, make(chan error, 1)
		go func() { f.synced <- w.writeData(f.fd) }()
	}
	if w.open = append(w.open, f); len(w.open) < limit {
		return nil
	}
	return w.endOldest(nil)
}

// endOldest waits for a file, and closes it. It does not wait without need if the write has failed, and returns why: because of a disk, if
// that is among the reasons.
func (w *write) endOldest(failed error) error {
	f := w.open[0]
	w.open = w.open[1:]
	if failed == nil {
		failed = context.Cause(w.ctx)
	}
	err := f.failed
	switch {
	case f.synced != nil:
		err = <-f.synced
	case failed == nil && err == nil:
		err = w.writeData(f.fd)
	}
	_ = unix.Close(f.fd)
	if err == nil || errdefs.IsUnavailable(failed) {
		return failed
	}
	return described(err, f.path)
}

// writeRange returns when the data of a file is on its disk, or in the cache of the disk. It does not write where it is: that is a
// change of the file system, and earlier than the return, because the kernel makes it before it ends the write (ext4_end_io_end in
// fs/ext4/page-io.c, xfs_end_ioend in fs/xfs/xfs_aops.c).
func writeRange(fd int) error {
	for {
		const writeAndWait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		if err := unix.SyncFileRange(fd, 0, 0, writeAndWait); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sync_file_range", err)
		}
	}
}

// writeData calls writeRange where that writes all data, and fsync elsewhere.
func writeData(fd int) error {
	if writesRanges() {
		return writeRange(fd)
	}
	return fsync(fd)
}

// writesRanges reports whether sync_file_range can be called, and writes all data if it also waits. Before Linux 5.2 it can leave out
// data (fs/sync.c). A filter of system calls may not know it.
var writesRanges = sync.OnceValue(func() bool {
	all, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 2})
	if err != nil || !all {
		return false
	}
	root, err := os.Open("/")
	if err != nil {
		return false
	}
	defer root.Close()
	return unix.SyncFileRange(int(root.Fd()), 0, 0, 0) == nil // it does nothing
})

func fsync(fd int) error {
	for {
		if err := unix.Fsync(fd); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fsync", err)
		}
	}
}

// walk puts the files of a directory, and, if deep is set, of those in it.
func (w *write) walk(at int, name, path string, dev uint64, deep bool) error {
	fd, err := open(at, name, path, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	err = w.putAllIn(fd, path, dev, deep)
	_ = unix.Close(fd)
	return err
}

// putAllIn puts the files of an open directory. It opens only regular files and directories: to open a FIFO or a device can block.
func (w *write) putAllIn(fd int, path string, dev uint64, deep bool) error {
	if _, err := w.isNew(fd, path, dev); err != nil {
		return err
	}
	list, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: path, Err: err}
	}
	dir := os.NewFile(uintptr(list), path)
	entries, err := dir.ReadDir(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, e := range entries {
		child := filepath.Join(path, e.Name())
		switch {
		case e.IsDir() && deep:
			err = w.walk(fd, e.Name(), child, dev, deep)
		case e.Type().IsRegular():
			err = w.putFile(fd, e.Name(), child, dev)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *write) putFile(at int, name, path string, dev uint64) error {
	fd, err := open(at, name, path, unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	put, err := w.isNew(fd, path, dev)
	if err != nil || !put {
		_ = unix.Close(fd)
		return err
	}
	return w.put(opened{fd: fd, path: path})
}

// isNew reports whether a file was not put before under another name. It fails with ErrNotImplemented if it is on another device.
func (w *write) isNew(fd int, path string, dev uint64) (bool, error) {
	var of unix.Stat_t
	if err := unix.Fstat(fd, &of); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if of.Dev != dev {
		return false, fmt.Errorf("%s is in another file system: %w", path, errdefs.ErrNotImplemented)
	}
	if of.Mode&unix.S_IFMT != unix.S_IFREG || of.Nlink == 1 {
		return true, nil
	}
	put := w.linked[of.Ino]
	w.linked[of.Ino] = true
	return !put, nil
}

func open(at int, name, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return fd, nil
	}
}
