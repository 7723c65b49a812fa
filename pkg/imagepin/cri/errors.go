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

// errorDomain is the domain of the ErrorInfo in a status' details.
const errorDomain = "imagepin.io"

// toStatus makes err the gRPC status that a CRI client gets. The service
// behind's own statuses stay as they are.
//
// kubelet turns two errors of PullImage into reasons of their own, which it
// recognizes by the beginning of the text, and only where the code is Unknown
// (k8s.io/cri-api/pkg/errors; convertToImagePullError in
// pkg/kubelet/images/image_manager.go). For these the class stands in the
// details.
func toStatus(err error) error {
	var e *imagepin.Error
	if errors.As(err, &e) {
		if prefix := kubeletPrefix(e, code(err)); prefix != nil {
			return withDetails(e, code(err), codes.Unknown, fmt.Sprintf("%s: %s", prefix, err))
		}
	}
	return plainStatus(err)
}

// plainStatus is toStatus without what is only for kubelet.
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

// withDetails makes a status whose details say the error's name and class.
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

// code gives the gRPC code of an error's class.
func code(err error) codes.Code {
	class := err
	var e *imagepin.Error
	if errors.As(err, &e) && e.Class != nil {
		class = e.Class // what it was decided to be outweighs its cause
	}
	switch {
	case errors.Is(class, context.Canceled):
		return codes.Canceled
	case errors.Is(class, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return status.Code(errgrpc.ToGRPC(errdefs.Resolve(class)))
}
