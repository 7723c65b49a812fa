package pull

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/errno"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// complete converts err to an [imagepin.Error] with the reference and the target. reason is for an error that is not
// one yet.
func complete(err error, reason imagepin.Reason, ref string, t runtimeplatform.Target) error {
	if errors.Is(err, errStalled) { // takes precedence over errors that the cancellation caused
		return &imagepin.Error{
			Reason: imagepin.PullStalled, Ref: ref, Target: t.String(), Class: context.DeadlineExceeded,
			Message: "the registry sent no data for image_pull_progress_timeout",
			Hint:    "Check the network to the registry and its mirrors. What has arrived is kept for a day, and the next pull fetches the rest.",
		}
	}
	var known *imagepin.Error
	if errors.As(err, &known) {
		e := *known
		e.Ref, e.Target = ref, t.String()
		return &e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := &imagepin.Error{Reason: reason, Ref: ref, Target: t.String(), Class: errdefs.Resolve(err), Err: resolve.RedactError(err)}
	damage := new(blobs.Damage)
	switch cause := errno.CauseOf(err); {
	case cause.Local() && !AtRegistry(err) && !errors.As(err, &damage):
		explainLocal(e, cause, t.Snapshotter)
	case errors.As(err, &damage):
		e.Reason, e.Class = imagepin.ContentDamaged, errdefs.ErrDataLoss
		e.Hint = "The node's disk lost or changed a part of the image. Run imagepin check --deep --repair when the registry is reachable."
	case IsCorrupt(err):
		e.Reason, e.Class = imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition
		e.Hint = "Check the registry and any proxy in front of it. Pull again. If the error persists, push the image again."
	case errdefs.IsNotFound(err) && !AtRegistry(err):
		e.Hint = "A part of the image is missing on the node: run imagepin check --repair."
	case errdefs.IsNotFound(err):
		e.Hint = "The registry no longer has a part of the image: push it again, or use another digest."
	case cause.Kind != errno.Other:
		e.Class = errdefs.ErrUnavailable
		e.Hint = "Check the network to the registry and its mirrors."
	case errdefs.IsUnavailable(err) && !AtRegistry(err): // kubelet takes this class for that of a registry
		e.Class = errdefs.ErrAborted
		e.Hint = "Pull again: containerd was restarted, or another client removed a part of the image."
	}
	return e
}

// IsCorrupt reports whether an error means that content is malformed or does not match its descriptor.
func IsCorrupt(err error) bool {
	for _, known := range []error{gzip.ErrHeader, gzip.ErrChecksum, tar.ErrHeader, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return true
		}
	}
	var (
		syntax *json.SyntaxError
		kind   *json.UnmarshalTypeError
	)
	if errors.As(err, &syntax) || errors.As(err, &kind) {
		return true
	}
	// The class of a digest or size mismatch (core/content, core/metadata, plugins/content/local).
	if errdefs.IsFailedPrecondition(err) {
		return true
	}
	text := err.Error()
	return isDecompression(text) || slices.ContainsFunc(corruptTexts, func(part string) bool { return strings.Contains(text, part) })
}

// corruptTexts are parts of errors about corrupt images that have no type in containerd.
var corruptTexts = []string{
	upstream.WrongDiffID, upstream.LayerCount, upstream.ZeroSize, upstream.NegativeSize,
	// Only the text of an error crosses the diff service: archive/tar, compress/gzip, compress/flate and io.
	"invalid tar header", "gzip: invalid", "flate: corrupt input", "unexpected EOF",
}

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

// errRemoved means that another client removed a part of the image during the pull.
var errRemoved = fmt.Errorf("a part of the image was removed during the pull: %w", errdefs.ErrUnavailable)

// removed is an error about content that was on the node and is gone. If it was removed meanwhile, another attempt
// finds it missing and fetches it.
type removed struct{ error }

// Is makes errors.Is match errRemoved.
func (removed) Is(target error) bool { return target == errRemoved }

// Unwrap returns the error.
func (r removed) Unwrap() error { return r.error }

// asRemoved converts an error about missing content to errRemoved, unless the content is missing in the registry or in
// the image itself.
func asRemoved(err error) error {
	var known *imagepin.Error
	if errdefs.IsNotFound(err) && !AtRegistry(err) && !errors.As(err, &known) {
		return removed{err}
	}
	return err
}

// errUnneeded reports that the key to repair is not recorded any more.
var errUnneeded = errors.New("the image was removed, or its tag was moved")
