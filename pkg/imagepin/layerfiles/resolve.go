package layerfiles

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
)

// maxLinks is how many symbolic links a path may have, as in RootPath of continuity.
const maxLinks = 255

// maxFollowed is how many symbolic links Linux follows in one path (MAXSYMLINKS).
const maxFollowed = 40

// errAbsent is the error of a path that does not exist.
var errAbsent = errors.New("no such file or directory")

// lookup returns the file at an absolute, clean path, as lstat(2) does.
func (t *Tree) lookup(path string) (*inode, error) {
	at := t.root
	for rest := path[1:]; rest != ""; {
		if at.isLink() {
			return t.follow(path[:len(path)-len(rest)-1], rest)
		}
		if !at.isDir() {
			return nil, fmt.Errorf("a directory of %s is not a directory: %w", quote(path), errdefs.ErrInvalidArgument)
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, ok := at.children[name]
		if !ok {
			return nil, errAbsent
		}
		at = next.inode
	}
	return at, nil
}

// follow returns the file at a path below a symbolic link.
func (t *Tree) follow(link, below string) (*inode, error) {
	if t.links >= maxFollowed {
		return nil, fmt.Errorf("%s has too many links: %w", quote(link), errdefs.ErrInvalidArgument)
	}
	t.links++
	defer func() { t.links-- }()
	target, err := t.rootPath(link)
	if err != nil {
		return nil, err
	}
	return t.lookup(filepath.Join(target, below))
}

// rootPath returns the absolute path that a path has with the tree as its root, after all symbolic links. It is RootPath of
// continuity (fs/path.go), which archive.Apply uses.
func (t *Tree) rootPath(path string) (string, error) {
	if len(path) > maxPath {
		return "", fmt.Errorf("path %s is longer than %d bytes: %w", quote(path), maxPath, errdefs.ErrInvalidArgument)
	}
	if clean := filepath.Join("/", path); t.plain(clean) {
		return clean, nil
	}
	for walked := 0; ; {
		before := walked
		next, err := t.walkLinks(path, &walked)
		if err != nil {
			return "", err
		}
		if path = next; before != walked {
			continue
		}
		if next = filepath.Join("/", next); path == next {
			return next, nil
		}
		path = next
	}
}

// plain reports whether all components of an absolute, clean path are directories. Most paths in layers are.
func (t *Tree) plain(path string) bool {
	at := t.root
	for rest := path[1:]; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, ok := at.children[name]
		if !ok || !next.isDir() {
			return false
		}
		at = next.inode
	}
	return true
}

func (t *Tree) walkLink(path string, walked *int) (next string, isLink bool, _ error) {
	if *walked > maxLinks {
		return "", false, fmt.Errorf("too many links: %w", errdefs.ErrInvalidArgument)
	}
	path = filepath.Join("/", path)
	at, err := t.lookup(path)
	switch {
	case errors.Is(err, errAbsent):
		return path, false, nil
	case err != nil:
		return "", false, err
	case !at.isLink():
		return path, false, nil
	}
	*walked++
	return at.link, true, nil
}

func (t *Tree) walkLinks(path string, walked *int) (string, error) {
	if len(path) > maxPath {
		return "", fmt.Errorf("path %s is longer than %d bytes: %w", quote(path), maxPath, errdefs.ErrInvalidArgument)
	}
	switch dir, file := filepath.Split(path); {
	case dir == "":
		next, _, err := t.walkLink(file, walked)
		return next, err
	case file == "":
		if dir == "/" {
			return dir, nil
		}
		return t.walkLinks(dir[:len(dir)-1], walked)
	default:
		parent, err := t.walkLinks(dir, walked)
		if err != nil {
			return "", err
		}
		next, isLink, err := t.walkLink(filepath.Join(parent, file), walked)
		if err != nil || !isLink || filepath.IsAbs(next) {
			return next, err
		}
		return filepath.Join(parent, next), nil
	}
}

// directory returns a directory by its resolved path, and makes it and its parents if they do not exist, see mkparent in
// archive.Apply.
func (t *Tree) directory(path string) (*inode, error) {
	at := t.root
	for rest := path[1:]; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next, ok := at.children[name]
		if !ok {
			next = entry{inode: &inode{mode: dirMode, any: true}}
			if err := t.add(at, name, next); err != nil {
				return nil, err
			}
		}
		if !next.isDir() {
			return nil, fmt.Errorf("a directory of %s is not a directory: %w", quote(path), errdefs.ErrInvalidArgument)
		}
		at = next.inode
	}
	return at, nil
}
