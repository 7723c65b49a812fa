package layerfiles

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// Names with a meaning in layers, see layer.md of the OCI image specification.
const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
)

// dirMode is the mode of a directory that archive.Apply makes for a file whose directory the layer does not have.
const dirMode = directory | 0o755

// Rules are how a layer is applied to the files of the layers below.
type Rules int

const (
	// Merge removes the files that the layer removes. containerd does so with every first layer, and for all snapshotters
	// but overlayfs.
	Merge Rules = iota
	// Overlay marks what the layer removes for overlayfs, and needs a tree without the layers below.
	Overlay
)

// applying is one call of Apply.
type applying struct {
	*Tree
	rules  Rules
	opaque map[string]bool // directories with a marker
	dirs   []string        // names of directories, as in the archive
	hash   hash.Hash
	buf    []byte
}

// Apply applies the tar stream of a layer to the tree, as archive.Apply of containerd does to a directory. It reads r up to
// the end of the archive. It fails with ErrInvalidArgument for an archive that archive.Apply rejects, with
// ErrResourceExhausted for one with too many files, or with the error of r. A tree is of no use after an error.
func (t *Tree) Apply(ctx context.Context, r io.Reader, rules Rules) error {
	t.layer++
	a := &applying{Tree: t, rules: rules, opaque: make(map[string]bool), hash: sha256.New(), buf: make([]byte, 128<<10)}
	for archive := tar.NewReader(r); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return a.finish()
		}
		if err != nil {
			return err
		}
		if err := a.apply(header, archive); err != nil {
			return fmt.Errorf("file %s: %w", quote(header.Name), err)
		}
	}
}

func (a *applying) apply(h *tar.Header, data io.Reader) error {
	parent, base := filepath.Split(filepath.Clean(h.Name))
	parent, err := a.rootPath(parent)
	if err != nil {
		return err
	}
	path := filepath.Join(parent, filepath.Join("/", base))
	if path == "/" {
		return nil
	}
	if len(path) > maxPath {
		return fmt.Errorf("its path is longer than %d bytes: %w", maxPath, errdefs.ErrInvalidArgument)
	}
	dir, err := a.directory(parent)
	if err != nil {
		return err
	}
	if name, ok := strings.CutPrefix(base, whiteoutPrefix); ok {
		return a.whiteout(dir, parent, name, h)
	}
	before := dir.children[base]
	merged := before.inode != nil && before.isDir() && h.Typeflag == tar.TypeDir
	if !merged {
		a.remove(dir, base)
	}
	made, err := a.file(h, data)
	if err != nil || made == nil {
		return err
	}
	if merged {
		made = before.inode
		made.any = false
		dir.children[base] = entry{made, a.layer}
	} else if err := a.add(dir, base, entry{made, a.layer}); err != nil {
		return err
	}
	if setOwner(made, h); h.Typeflag == tar.TypeDir {
		a.dirs = append(a.dirs, filepath.Clean(h.Name))
	}
	return nil
}

// finish rejects a layer that has removed its own directory: archive.Apply sets the times of directories in the end.
func (a *applying) finish() error {
	for _, name := range a.dirs {
		path, err := a.rootPath(name)
		if err == nil {
			_, err = a.lookup(path)
		}
		if err != nil {
			return fmt.Errorf("directory %s: %w", quote(name), err)
		}
	}
	return nil
}

// file returns the file of a header, without its owner. It returns nil for a header without a file.
func (a *applying) file(h *tar.Header, data io.Reader) (*inode, error) {
	switch h.Typeflag {
	case tar.TypeDir:
		return &inode{mode: directory}, nil
	case tar.TypeReg, '\x00': // tar.TypeRegA
		i := &inode{mode: regular}
		a.hash.Reset()
		n, err := io.CopyBuffer(struct{ io.Writer }{a.hash}, data, a.buf)
		i.size = uint64(n)
		a.hash.Sum(i.sum[:0])
		return i, err
	case tar.TypeBlock, tar.TypeChar:
		if h.Devmajor < 0 || h.Devmajor > math.MaxUint32 || h.Devminor < 0 || h.Devminor > math.MaxUint32 {
			return nil, fmt.Errorf("device %d:%d: %w", h.Devmajor, h.Devminor, errdefs.ErrInvalidArgument)
		}
		kind := uint32(character)
		if h.Typeflag == tar.TypeBlock {
			kind = block
		}
		return &inode{mode: kind, size: device(uint64(h.Devmajor), uint64(h.Devminor))}, nil
	case tar.TypeFifo:
		return &inode{mode: pipe}, nil
	case tar.TypeSymlink:
		return &inode{mode: link, link: h.Linkname}, nil
	case tar.TypeLink:
		return a.linked(h.Linkname)
	case tar.TypeXGlobalHeader:
		return nil, nil
	}
	return nil, fmt.Errorf("type %q of the archive: %w", h.Typeflag, errdefs.ErrInvalidArgument)
}

// linked returns the file that a hard link is to, see hardlinkRootPath in archive.Apply.
func (a *applying) linked(name string) (*inode, error) {
	parent, base := filepath.Split(name)
	parent, err := a.rootPath(parent)
	if err != nil {
		return nil, err
	}
	i, err := a.lookup(filepath.Join("/", parent, base))
	if err != nil {
		return nil, fmt.Errorf("hard link to %s: %w", quote(name), err)
	}
	if i.isDir() {
		return nil, fmt.Errorf("hard link to directory %s: %w", quote(name), errdefs.ErrInvalidArgument)
	}
	return i, nil
}

// whiteout removes a file of the layers below, or all of a directory. name is that of the whiteout without its prefix.
func (a *applying) whiteout(dir *inode, path, name string, h *tar.Header) error {
	switch {
	case whiteoutPrefix+name == opaqueMarker && a.rules == Overlay:
		dir.opaque = true
	case whiteoutPrefix+name == opaqueMarker:
		if !a.opaque[path] {
			a.opaque[path] = true
			a.clear(dir)
		}
	case name == "" || name == "." || name == "..":
		return fmt.Errorf("invalid whiteout: %w", errdefs.ErrInvalidArgument)
	case a.rules == Merge:
		a.remove(dir, name)
	case dir.children[name].inode != nil:
		return fmt.Errorf("whiteout of a file of the same layer: %w", errdefs.ErrInvalidArgument)
	default:
		i := &inode{mode: character}
		setOwner(i, h)
		i.mode = character
		return a.add(dir, name, entry{i, a.layer})
	}
	return nil
}

// clear removes what the current layer has not put into a directory.
func (a *applying) clear(dir *inode) {
	for name, e := range dir.children {
		switch {
		case e.layer != a.layer:
			a.remove(dir, name)
		case e.isDir():
			a.clear(e.inode)
		}
	}
}

// setOwner sets the owner and the mode of a file.
func setOwner(i *inode, h *tar.Header) {
	if uid := uint32(h.Uid); uid != math.MaxUint32 { // chown(2) does not change this one
		i.uid = uid
	}
	if gid := uint32(h.Gid); gid != math.MaxUint32 {
		i.gid = gid
	}
	if !i.isLink() {
		i.mode = i.kind() | uint32(h.Mode)&0o7777
	}
}

// device returns the number of a device, as makedev(3) of Linux.
func device(major, minor uint64) uint64 {
	return major&0xfff<<8 | major&0xfffff000<<32 | minor&0xff | minor&0xffffff00<<12
}
