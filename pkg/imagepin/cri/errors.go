package cri

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// errorDomain is the domain of the ErrorInfo in the details of a status.
const errorDomain = "imagepin.io"

// toStatus returns the gRPC status of err for a CRI client. It does not change the statuses of upstream.
//
// kubelet maps two errors of PullImage to reasons of their own. It recognizes them by the beginning of the text, and
// only if the code is Unknown (see package upstream). For these two, the class is in the details only.
func toStatus(err error) error {
	var e *imagepin.Error
	if errors.As(err, &e) {
		if prefix := kubeletPrefix(e, code(err)); prefix != nil {
			return withDetails(e, code(err), codes.Unknown, fmt.Sprintf("%s: %s", prefix, err))
		}
	}
	return plainStatus(err)
}

// plainStatus is toStatus without the special cases for kubelet.
func plainStatus(err error) error {
	if err == nil {
		return nil
	}
	var e *imagepin.Error
	if errors.As(err, &e) {
		return withDetails(e, code(err), code(err), err.Error())
	}
	if s, ok := status.FromError(err); ok {
		return s.Err()
	}
	return status.Error(code(err), imagepin.Bound(err.Error(), imagepin.MaxErrorText))
}

// withDetails returns a status whose details contain the reason and the class of an error.
func withDetails(e *imagepin.Error, class, c codes.Code, text string) error {
	text = imagepin.Bound(text, imagepin.MaxErrorText)
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: errorDomain, Metadata: map[string]string{"class": class.String()}}
	s, derr := status.New(c, text).WithDetails(info)
	if derr != nil {
		return status.Error(c, text)
	}
	return s.Err()
}

func kubeletPrefix(e *imagepin.Error, c codes.Code) error {
	switch {
	case e.Reason == imagepin.ImageVerificationFailed:
		return crierrors.ErrSignatureValidationFailed
	case e.Reason == imagepin.CannotPullImageManifest && c == codes.Unavailable,
		e.Reason == imagepin.CannotPullImage && c == codes.Unavailable,
		e.Reason == imagepin.ManifestPullTimeout, e.Reason == imagepin.PullStalled:
		return crierrors.ErrRegistryUnavailable
	}
	return nil
}

// code returns the gRPC code of an error's class.
func code(err error) codes.Code {
	class := err
	var e *imagepin.Error
	if errors.As(err, &e) && e.Class != nil {
		class = e.Class // it takes precedence over the class of its cause
	}
	switch {
	case errors.Is(class, context.Canceled):
		return codes.Canceled
	case errors.Is(class, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return status.Code(errgrpc.ToGRPC(errdefs.Resolve(class)))
}
