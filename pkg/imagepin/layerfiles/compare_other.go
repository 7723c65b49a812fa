//go:build !linux

package layerfiles

import "context"

// Compare compares a directory with the tree. Images have files of Linux, which other systems cannot compare.
func (t *Tree) Compare(context.Context, string, Options) (Result, error) {
	return Result{Reason: "files are compared on Linux only"}, nil
}

// Remote reports whether a directory is on a FUSE file system.
func Remote(string) bool { return false }

// InUserNamespace reports whether this process is in a user namespace.
func InUserNamespace() bool { return false }
