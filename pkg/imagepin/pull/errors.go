package pull

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

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
