package layerfiles

import (
	"crypto/sha256"
	"fmt"

	"github.com/containerd/errdefs"
)

// The types of files in their mode, as in stat(2) of Linux.
const (
	typeMask  = 0o170000
	pipe      = 0o010000
	character = 0o020000
	directory = 0o040000
	block     = 0o060000
	regular   = 0o100000
	link      = 0o120000
	socket    = 0o140000
)

const (
	// maxInodes and maxNames limit a tree: the number of its files, and the size of their names and of the targets of symbolic
	// links, in bytes. A tree at both limits needs less than 700 MiB; one of 100,000 files 20 MiB.
	maxInodes = 2 << 20
	maxNames  = 256 << 20
	// maxPath and maxName are the limits of Linux for a path and a name (PATH_MAX and NAME_MAX in limits.h), which
	// archive.Apply fails at.
	maxPath = 4096
	maxName = 255
)

// Tree is what the directory of a snapshot has to contain.
type Tree struct {
	root                *inode
	inodes              int
	names               int // bytes
	layer               uint32
	maxInodes, maxNames int
	links               int // symbolic links that lookup is following
}

// inode is a file. Hard links share one.
type inode struct {
	mode     uint32 // as in stat(2), with the type
	uid, gid uint32
	// any reports that the mode and the owner are unknown: the layer has a file in the directory, and not the directory.
	// containerd copies them from a lower layer if it knows one.
	any bool
	// opaque reports that a directory of an overlay hides that of lower layers.
	opaque bool
	// size is that of a regular file in bytes, or the number of a device.
	size     uint64
	sum      [sha256.Size]byte // of a regular file
	link     string            // the target of a symbolic link
	children map[string]entry
}

// entry is an entry of a directory.
type entry struct {
	*inode
	// layer is the number of the layer that has the entry. It is 0 for a directory that no layer has.
	layer uint32
}

// NewTree returns an empty tree.
func NewTree() *Tree {
	return &Tree{maxInodes: maxInodes, maxNames: maxNames, root: &inode{mode: directory, any: true, children: make(map[string]entry)}}
}

func (i *inode) kind() uint32   { return i.mode & typeMask }
func (i *inode) isDir() bool    { return i.kind() == directory }
func (i *inode) isFile() bool   { return i.kind() == regular }
func (i *inode) isLink() bool   { return i.kind() == link }
func (i *inode) isDevice() bool { return i.kind() == character || i.kind() == block }

// isWhiteout reports whether overlayfs shows no file in place of a character device.
func (i *inode) isWhiteout() bool { return i.kind() == character && i.size == 0 }

// add adds an entry to a directory, in place of an existing one.
func (t *Tree) add(dir *inode, name string, e entry) error {
	if len(name) > maxName {
		return fmt.Errorf("name %s is longer than %d bytes: %w", quote(name), maxName, errdefs.ErrInvalidArgument)
	}
	t.remove(dir, name)
	t.inodes++
	t.names += len(name) + len(e.link)
	if t.inodes > t.maxInodes || t.names > t.maxNames {
		return fmt.Errorf("the image has more than %d files, or %d bytes of names: %w", t.maxInodes, t.maxNames, errdefs.ErrResourceExhausted)
	}
	if dir.children == nil {
		dir.children = make(map[string]entry)
	}
	dir.children[name] = e
	return nil
}

// remove removes an entry and what is below it.
func (t *Tree) remove(dir *inode, name string) {
	e, ok := dir.children[name]
	if !ok {
		return
	}
	for below := range e.children {
		t.remove(e.inode, below)
	}
	t.inodes--
	t.names -= len(name) + len(e.link)
	delete(dir.children, name)
}
