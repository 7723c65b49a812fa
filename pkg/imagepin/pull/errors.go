package pull

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// complete makes err an [imagepin.Error] that says which reference and target
// it is about. name is for an error that has none yet.
func complete(err error, name imagepin.Reason, ref string, t runtimeplatform.Target) error {
	if errors.Is(err, errStalled) { // whatever else its end has caused
		return &imagepin.Error{
			Reason: imagepin.PullStalled, Ref: ref, Target: t.String(), Class: context.DeadlineExceeded,
			Message: "the registry sent nothing for as long as image_pull_progress_timeout",
			Hint:    "Check the network to the registry and its mirrors; what was fetched is not kept.",
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
	e := &imagepin.Error{Reason: name, Ref: ref, Target: t.String(), Class: errdefs.Resolve(err), Err: resolve.RedactError(err)}
	damage := new(blobs.Damage)
	switch {
	case errors.As(err, &damage):
		e.Reason, e.Class = imagepin.ContentDamaged, errdefs.ErrDataLoss
		e.Hint = "The disk of the node has lost or altered a part of the image. Run imagepin check --deep --repair when the registry can be reached."
	case corrupt(err):
		e.Reason, e.Class = imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition
		e.Hint = "Check the registry and any proxy before it; pull again, or push the image again if it stays."
	case errors.Is(err, syscall.ENOSPC):
		e.Class = errdefs.ErrResourceExhausted
		e.Hint = "Free space on the filesystem of containerd's root."
	case errdefs.IsNotFound(err) && !atRegistry(err):
		e.Hint = "The node has lost a part of the image: run imagepin check --repair."
	case errdefs.IsNotFound(err):
		e.Hint = "The registry no longer has a part of the image: push it again, or use another digest."
	case unreachable(err):
		e.Class = errdefs.ErrUnavailable
		e.Hint = "Check the network to the registry and its mirrors."
	}
	return e
}

// corrupt reports whether an error is that content is not what it is said to be.
func corrupt(err error) bool {
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
	// The class of digests and sizes that do not match (core/content, core/metadata, plugins/content/local).
	if errdefs.IsFailedPrecondition(err) {
		return true
	}
	text := err.Error()
	return slices.ContainsFunc(untyped, func(part string) bool { return strings.Contains(text, part) })
}

// untyped are parts of the errors of corrupt images that have no type in containerd.
var untyped = []string{
	// core/unpack/unpacker.go and core/remotes/handlers.go
	"wrong diff id", "number of layers and diffIDs don't match", "reports content size of zero", "reports negative content size",
	// What crosses the diff service keeps its text only: archive/tar, compress/gzip, io, and zstd.
	"invalid tar header", "gzip: invalid", "unexpected EOF", "magic number mismatch",
}

func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}
