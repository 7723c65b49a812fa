package pull

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
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
func complete(err error, name imagepin.Name, ref string, t runtimeplatform.Target) error {
	if errors.Is(err, errStalled) { // whatever else its end has caused
		return &imagepin.Error{
			Name: imagepin.PullStalled, Ref: ref, For: t.String(), Class: context.DeadlineExceeded,
			What: "the registry sent nothing for as long as image_pull_progress_timeout",
			Do:   "Check the network to the registry and its mirrors; what was fetched is not kept.",
		}
	}
	var known *imagepin.Error
	if errors.As(err, &known) {
		e := *known
		e.Ref, e.For = ref, t.String()
		return &e
	}
	if errors.Is(err, context.Canceled) {
		return err
	}
	e := &imagepin.Error{Name: name, Ref: ref, For: t.String(), Class: errdefs.Resolve(err), Err: resolve.RedactError(err)}
	damage := new(blobs.Damage)
	switch {
	case errors.As(err, &damage):
		e.Name, e.Class = imagepin.ContentDamaged, errdefs.ErrDataLoss
		e.Do = "The disk of the node has lost or altered a part of the image. Run imagepin check --deep --repair when the registry can be reached."
	case corrupt(err):
		e.Name, e.Class = imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition
		e.Do = "Check the registry and any proxy before it; pull again, or push the image again if it stays."
	case errors.Is(err, syscall.ENOSPC):
		e.Class = errdefs.ErrResourceExhausted
		e.Do = "Free space on the filesystem of containerd's root."
	case errdefs.IsNotFound(err) && !atRegistry(err):
		e.Do = "The node has lost a part of the image: run imagepin check --repair."
	case errdefs.IsNotFound(err):
		e.Do = "The registry no longer has a part of the image: push it again, or use another digest."
	case unreachable(err):
		e.Class = errdefs.ErrUnavailable
		e.Do = "Check the network to the registry and its mirrors."
	}
	return e
}

// corrupt tells whether content is not what it is said to be. What crosses
// containerd's diff service keeps only its text.
func corrupt(err error) bool {
	for _, known := range []error{gzip.ErrHeader, gzip.ErrChecksum, tar.ErrHeader, io.ErrUnexpectedEOF} {
		if errors.Is(err, known) {
			return true
		}
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return true
	}
	text := err.Error()
	for _, said := range []string{
		"unexpected commit digest", "unexpected commit size", "failed size validation", "failed to copy: unexpected",
		"expected size", "content size of zero", "negative content size",
		"wrong diff id", "invalid tar header", "gzip: invalid", "unexpected EOF", "number of layers and diffIDs don't match",
		"magic number mismatch", "invalid character", "unmarshal image config",
	} {
		if strings.Contains(text, said) {
			return true
		}
	}
	return false
}

func unreachable(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}
