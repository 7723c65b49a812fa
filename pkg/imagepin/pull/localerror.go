package pull

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
)

// explainLocal sets the message, the class and the hint of an error of this node. The registry is not the cause, so that the
// class is never ErrUnavailable.
func explainLocal(e *imagepin.Error, cause errno.Cause, snapshotter string) {
	e.Message, e.Class = "an error of the node, not of the registry", errdefs.ErrInternal
	switch cause.Kind {
	case errno.Space:
		e.Class = errdefs.ErrResourceExhausted
		e.Hint = "Free space on the filesystem of containerd's root. Inodes and quotas can be used up, too."
		return
	case errno.Limit:
		e.Class = errdefs.ErrResourceExhausted
		e.Hint = "Raise the limits of containerd and imagepin serve, such as LimitNOFILE in their systemd units, or those of the node."
		return
	case errno.Disk:
		e.Hint = "Check the disk, and the filesystem of containerd's root: dmesg, mount."
		return
	}
	if !strings.Contains(e.Err.Error(), upstream.ExtractingLayer) {
		e.Hint = "Check the filesystem of containerd's root, and the permissions of containerd."
		return
	}
	e.Hint = fmt.Sprintf("The filesystem of snapshotter %s cannot store this layer. ", snapshotter)
	switch cause.Number {
	case syscall.EEXIST:
		e.Hint += "The layer has two entries of one name, or a file and its whiteout. Build the image again."
	case syscall.ENAMETOOLONG:
		e.Hint += "The layer has a name that is too long: most filesystems allow 255 bytes. Build the image without it."
	case syscall.ENOENT:
		e.Hint += "The layer has a hard link to a file that it does not have: build the image again. If other images fail too, run imagepin check."
	case syscall.EPERM, syscall.EACCES, syscall.EOPNOTSUPP, syscall.EINVAL:
		e.Hint += "It may not allow device files, extended attributes or owners: check mount options, user namespaces and security modules."
	default:
		e.Hint += "Build the image again, or use another snapshotter."
	}
}
