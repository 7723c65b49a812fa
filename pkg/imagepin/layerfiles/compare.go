//go:build linux

package layerfiles

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// opaqueAttributes are the extended attributes of an opaque directory of an overlay. The second one is that of mounts in a user
// namespace, see overlayfs.rst of Linux.
var opaqueAttributes = []string{"trusted.overlay.opaque", "user.overlay.opaque"}

// comparison is one call of Compare.
type comparison struct {
	Options
	ctx    context.Context
	root   string
	result Result
	buf    []byte
}

// Compare compares a directory with the tree. It does not compare the attributes of the directory itself, nor times and other
// extended attributes than those of overlayfs. Files that cannot be read make the result [Unverified] if nothing differs. Compare
// fails only with the error of ctx or [Options.Read].
func (t *Tree) Compare(ctx context.Context, dir string, o Options) (Result, error) {
	c := &comparison{Options: o, ctx: ctx, root: dir, buf: make([]byte, 128<<10)}
	if err := c.directory("/", t.root); err != nil {
		return Result{}, err
	}
	if c.result.State == Unverified && c.result.Reason == "" {
		c.result.State = Intact
	}
	return c.result, nil
}

// unknown notes that a file cannot be read.
func (c *comparison) unknown(err error) {
	if c.result.Reason == "" {
		c.result.Reason = err.Error()
	}
}

// directory compares the content of a directory.
func (c *comparison) directory(path string, want *inode) error {
	if want.opaque && !c.isOpaque(path) {
		c.result.add(path, "is not opaque")
	}
	for _, name := range slices.Sorted(maps.Keys(want.children)) {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := c.file(filepath.Join(path, name), want.children[name].inode); err != nil {
			return err
		}
	}
	return c.extra(path, want)
}

// extra adds the entries of a directory that no layer has.
func (c *comparison) extra(path string, want *inode) error {
	d, err := os.Open(c.root + path)
	if err != nil {
		c.unknown(err)
		return nil
	}
	defer d.Close()
	for {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		names, err := d.Readdirnames(1024)
		slices.Sort(names)
		for _, name := range names {
			child := filepath.Join(path, name)
			if _, ok := want.children[name]; !ok && (c.Extra == nil || !c.Extra(child)) {
				c.result.add(child, "is in no layer")
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			c.unknown(err)
			return nil
		}
	}
}

func (c *comparison) isOpaque(path string) bool {
	value := make([]byte, 1)
	for _, name := range opaqueAttributes {
		if n, err := unix.Lgetxattr(c.root+path, name, value); err == nil && n == 1 && value[0] == 'y' {
			return true
		}
	}
	return false
}

// file compares one file, and what is below a directory.
func (c *comparison) file(path string, want *inode) error {
	info, err := os.Lstat(c.root + path)
	if errors.Is(err, fs.ErrNotExist) {
		c.result.add(path, "is missing")
		return nil
	}
	if err != nil {
		c.unknown(err)
		return nil
	}
	have := info.Sys().(*syscall.Stat_t)
	switch {
	case have.Mode&typeMask != want.kind():
		c.result.add(path, fmt.Sprintf("is a %s instead of a %s", kindName(have.Mode), kindName(want.mode)))
		return nil
	case want.isDevice() && uint64(have.Rdev) != want.size:
		c.result.add(path, fmt.Sprintf("is device %d:%d instead of %d:%d", unix.Major(have.Rdev), unix.Minor(have.Rdev), unix.Major(want.size), unix.Minor(want.size)))
		return nil
	case want.isLink():
		if target, err := os.Readlink(c.root + path); err != nil {
			c.unknown(err)
		} else if target != want.link {
			c.result.add(path, fmt.Sprintf("links to %s instead of %s", quote(target), quote(want.link)))
		}
	case want.isFile() && uint64(have.Size) != want.size:
		c.result.add(path, fmt.Sprintf("has %d bytes instead of %d", have.Size, want.size))
		return nil
	case want.isWhiteout():
		return nil
	case !want.any && have.Mode&0o7777 != want.mode&0o7777:
		c.result.add(path, fmt.Sprintf("has mode %04o instead of %04o", have.Mode&0o7777, want.mode&0o7777))
	}
	if !want.any && (have.Uid != want.uid || have.Gid != want.gid) {
		c.result.add(path, fmt.Sprintf("belongs to %d:%d instead of %d:%d", have.Uid, have.Gid, want.uid, want.gid))
	}
	switch {
	case want.isDir():
		return c.directory(path, want)
	case want.isFile() && want.size > 0:
		return c.content(path, want)
	}
	return nil
}

// content compares the content of a regular file of the right size.
func (c *comparison) content(path string, want *inode) error {
	f, err := os.OpenFile(c.root+path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		c.unknown(err)
		return nil
	}
	defer f.Close()
	if !c.Deep {
		suspicious, err := c.suspicious(f, int64(want.size))
		if err != nil || !suspicious {
			return err
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		c.unknown(err)
		return nil
	}
	sum := sha256.New()
	var size uint64
	for {
		n, err := c.read(f)
		if err == io.EOF {
			break
		}
		if unread := new(fs.PathError); errors.As(err, &unread) {
			c.unknown(err)
			return nil
		}
		if err != nil {
			return err
		}
		sum.Write(c.buf[:n])
		size += uint64(n)
	}
	if size != want.size || !bytes.Equal(sum.Sum(nil), want.sum[:]) {
		c.result.add(path, "has other content")
	}
	return nil
}

// suspicious reports whether a file has a hole, or only zeros.
func (c *comparison) suspicious(f *os.File, size int64) (bool, error) {
	if hole, err := f.Seek(0, unix.SEEK_HOLE); err == nil && hole < size {
		return true, nil
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return true, nil
	}
	c.buf = c.buf[:firstRead]
	defer func() { c.buf = c.buf[:cap(c.buf)] }()
	for {
		n, err := c.read(f)
		if unread := new(fs.PathError); err == io.EOF || errors.As(err, &unread) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		if slices.ContainsFunc(c.buf[:n], func(b byte) bool { return b != 0 }) {
			return false, nil
		}
		c.buf = c.buf[:cap(c.buf)]
	}
}

// firstRead is how many bytes are read of a file that is expected not to begin with zeros.
const firstRead = 4 << 10

// read reads into the buffer.
func (c *comparison) read(f *os.File) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := f.Read(c.buf)
	if n > 0 && c.Read != nil {
		if err := c.Read(int64(n)); err != nil {
			return 0, err
		}
	}
	return n, err
}

// kindName returns the name of the type of a file.
func kindName(mode uint32) string {
	switch mode & typeMask {
	case regular:
		return "regular file"
	case directory:
		return "directory"
	case link:
		return "symbolic link"
	case character:
		return "character device"
	case block:
		return "block device"
	case pipe:
		return "named pipe"
	case socket:
		return "socket"
	}
	return "file of an unknown type"
}

// Remote reports whether a directory is on a FUSE file system. That of a remote snapshotter, which fetches the files that are
// read, and of which nothing is on the disk to compare, is.
func Remote(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.FUSE_SUPER_MAGIC
}

// InUserNamespace reports whether this process is in a user namespace, see user_namespaces(7). containerd unpacks layers by other rules
// there: without devices, and with whiteouts that the kernel makes.
func InUserNamespace() bool {
	ids, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !bytes.Equal(bytes.Join(bytes.Fields(ids), []byte(" ")), []byte("0 0 4294967295"))
}
