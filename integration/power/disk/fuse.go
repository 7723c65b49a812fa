package disk

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/imagepin/imagepin/integration/node"
)

// fileName is the name of the only file of a served directory.
const fileName = "disk"

// serve returns a descriptor of a file with the content of the disk. The server ends when the file is closed by all who have
// it.
func (d *Disk) serve() (fd int, ended func(), _ error) {
	at, err := node.TempDir()
	if err != nil {
		return 0, nil, err
	}
	defer os.Remove(at)
	// No child process may have this descriptor, because the server of a killed process ends when nobody has it.
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("/dev/fuse: %w", err)
	}
	const maxWrite = 1 << 20
	options := fmt.Sprintf("fd=%d,rootmode=%o,user_id=0,group_id=0,max_read=%d", dev, unix.S_IFDIR, maxWrite)
	if err := unix.Mount("imagepin-disk", at, "fuse.imagepin-disk", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		_ = unix.Close(dev)
		return 0, nil, fmt.Errorf("mounting FUSE: %w", err)
	}
	// The file keeps the file system. Without a mount, there is nothing to clean up.
	defer unix.Unmount(at, unix.MNT_DETACH)
	valid := time.Hour
	raw := fs.NewNodeFS(&directory{disk: d}, &fs.Options{AttrTimeout: &valid, EntryTimeout: &valid})
	server, err := fuse.NewServer(raw, fmt.Sprintf("/dev/fd/%d", dev), &fuse.MountOptions{
		MaxWrite:     maxWrite,
		Logger:       log.New(io.Discard, "", 0),           // it logs that the file system has ended
		PanicHandler: func(v any) fuse.Status { panic(v) }, // go-fuse would turn a bug of the disk into an I/O error of the node
	})
	if err != nil {
		_ = unix.Close(dev)
		return 0, nil, err
	}
	go server.Serve()
	if err := server.WaitMount(); err != nil {
		return 0, nil, err
	}
	// os.Open would poll the file, and block a thread of this process until this process answers.
	fd, err = unix.Open(at+"/"+fileName, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	return fd, server.Wait, nil
}

// directory is the root of the file system.
type directory struct {
	fs.Inode
	disk *Disk
}

func (r *directory) OnAdd(ctx context.Context) {
	r.AddChild(fileName, r.NewPersistentInode(ctx, &file{disk: r.disk}, fs.StableAttr{Mode: syscall.S_IFREG}), false)
}

type file struct {
	fs.Inode
	disk *Disk
}

func (f *file) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode, out.Size, out.Blksize = syscall.S_IFREG|0o600, uint64(f.disk.size), 4096
	return 0
}

func (f *file) Setattr(ctx context.Context, h fs.FileHandle, _ *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	return f.Getattr(ctx, h, out)
}

func (f *file) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) { return nil, 0, 0 }

func (f *file) Read(_ context.Context, _ fs.FileHandle, b []byte, at int64) (fuse.ReadResult, syscall.Errno) {
	n, _ := f.disk.ReadAt(b, at) // reading memory does not fail
	return fuse.ReadResultData(b[:n]), 0
}

func (f *file) Write(_ context.Context, _ fs.FileHandle, b []byte, at int64) (uint32, syscall.Errno) {
	n, _ := f.disk.WriteAt(b, at) // writing memory does not fail
	return uint32(n), 0
}

func (f *file) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.disk.Flush()
	return 0
}

func (f *file) Flush(context.Context, fs.FileHandle) syscall.Errno { return 0 }

// Allocate refuses to discard blocks. The kernel then never does it.
func (f *file) Allocate(context.Context, fs.FileHandle, uint64, uint64, uint32) syscall.Errno {
	return syscall.EOPNOTSUPP
}
