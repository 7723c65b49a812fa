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
//
// It fails with ErrUnavailable if a disk fails, with the cause of ctx if that ends, and with the error of open(2) if a directory
// is gone. It fails with ErrNotImplemented if a file system does not keep the order of changes.
func (b *Barrier) syncTrees(ctx context.Context, parent string, trees ...string) error {
	in, err := os.Open(parent)
	if err != nil {
		return err
	}
	defer in.Close()
	if !b.ordered(in) {
		return fmt.Errorf("the file system of %s does not keep the order of changes: %w", parent, errdefs.ErrNotImplemented)
	}
	var of unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &of); err != nil {
		return &os.PathError{Op: "stat", Path: parent, Err: err}
	}
	w := b.newWrite(ctx, b.writeData)
	if err := w.end(w.walkAll(of.Dev, trees)); err != nil {
		return err
	}
	if err := os.Chtimes(parent, time.Time{}, time.Now()); err != nil {
		return err
	}
	w = b.newWrite(ctx, b.fsync)
	fd, err := unix.FcntlInt(in.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		err = w.put(opened{fd, parent})
	}
	return w.end(err)
}

// beginTree makes the kernel write the files of a directory, one directory after the other, and waits for nothing. [Barrier.SyncTrees]
// has less to write then, and reports what fails.
func (b *Barrier) beginTree(path string) {
	b.beginning.Lock()
	defer b.beginning.Unlock()
	var of unix.Stat_t
	if unix.Lstat(path, &of) != nil {
		return
	}
	w := b.newWrite(context.Background(), func(int) error { return nil })
	_ = w.end(w.walk(unix.AT_FDCWD, path, path, of.Dev))
}

const (
	// maxWrites is the maximum number of files that the process writes at once.
	maxWrites = 32
	// aheadFiles is how many files are open whose data the kernel has begun to write.
	aheadFiles = 128
)

// write is a number of calls for files. A call cannot be canceled: if the context ends, those that are running go on, and close their
// files.
type write struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	slots  chan struct{}
	call   func(fd int) error
	queue  chan opened
	done   chan struct{} // closed when all workers have ended
	linked map[uint64]bool
}

// opened is an open file or directory.
type opened struct {
	fd   int
	path string
}

func (b *Barrier) newWrite(ctx context.Context, call func(fd int) error) *write {
	w := &write{slots: b.slots, call: call, queue: make(chan opened, aheadFiles), done: make(chan struct{}), linked: make(map[uint64]bool)}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	var workers sync.WaitGroup
	for range maxWrites {
		workers.Go(w.work)
	}
	go func() {
		workers.Wait()
		close(w.done)
	}()
	return w
}

// work makes the call for what is in the queue, and closes it.
func (w *write) work() {
	for f := range w.queue {
		select {
		case <-w.ctx.Done():
		case w.slots <- struct{}{}:
			if err := w.call(f.fd); err != nil {
				w.cancel(fmt.Errorf("write %s to its disk: %w: %w", f.path, err, errdefs.ErrUnavailable))
			}
			<-w.slots
		}
		_ = unix.Close(f.fd)
	}
}

// writeData returns when the data of a file is on its disk, or in the cache of the disk. It does not write where it is: that is a change
// of the file system, and earlier than the return, because the kernel makes it before it ends the write (ext4_end_io_end in
// fs/ext4/page-io.c, xfs_end_ioend in fs/xfs/xfs_aops.c). Before Linux 5.2, sync_file_range can leave out data, and fsync is called.
func writeData(fd int) error {
	if !writesAll() {
		return fsync(fd)
	}
	const writeAndWait = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	for {
		err := unix.SyncFileRange(fd, 0, 0, writeAndWait)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM): // a filter of system calls
			return fsync(fd)
		default:
			return os.NewSyscallError("sync_file_range", err)
		}
	}
}

// writesAll reports whether sync_file_range writes all data if it also waits (fs/sync.c).
var writesAll = sync.OnceValue(func() bool {
	all, err := kernelversion.GreaterEqualThan(kernelversion.KernelVersion{Kernel: 5, Major: 2})
	return err == nil && all
})

func fsync(fd int) error {
	for {
		if err := unix.Fsync(fd); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("fsync", err)
		}
	}
}

// put passes a file to a worker, which closes it.
func (w *write) put(f opened) error {
	select {
	case w.queue <- f:
		return nil
	case <-w.ctx.Done():
		_ = unix.Close(f.fd)
		return context.Cause(w.ctx)
	}
}

// end waits for the workers. err is why nothing more was put, if that is not all.
func (w *write) end(err error) error {
	close(w.queue)
	if err != nil {
		w.cancel(err)
		return context.Cause(w.ctx)
	}
	select {
	case <-w.done:
	case <-w.ctx.Done():
	}
	err = context.Cause(w.ctx)
	w.cancel(nil)
	return err
}

// walkAll puts the files of trees of one device.
func (w *write) walkAll(dev uint64, trees []string) error {
	for _, path := range trees {
		if err := w.walk(unix.AT_FDCWD, path, path, dev); err != nil {
			return err
		}
	}
	return nil
}

// walk puts the files of a directory.
func (w *write) walk(at int, name, path string, dev uint64) error {
	fd, err := open(at, name, path, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	err = w.putAllIn(fd, path, dev)
	_ = unix.Close(fd)
	return err
}

// putAllIn puts the files of an open directory. It opens only regular files and directories: to open a FIFO or a device can block.
func (w *write) putAllIn(fd int, path string, dev uint64) error {
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
		case e.IsDir():
			err = w.walk(fd, e.Name(), child, dev)
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
	// It begins to write and waits for nothing. The call for the file reports if it fails.
	_ = unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	return w.put(opened{fd, path})
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
