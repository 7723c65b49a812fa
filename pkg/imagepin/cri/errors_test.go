package cri

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

func TestToStatus(t *testing.T) {
	upstream, err := status.New(codes.ResourceExhausted, "from upstream").WithDetails(&errdetails.ErrorInfo{Reason: "upstream"})
	if err != nil {
		t.Fatal(err)
	}
	typed := func(name imagepin.Reason, class error) error {
		return &imagepin.Error{Reason: name, Ref: "r", Target: "t", Class: class}
	}
	const unavailable, signature = "RegistryUnavailable: ", "SignatureValidationFailed: "
	for name, c := range map[string]struct {
		err    error
		code   codes.Code
		text   string // prefix of the message
		reason string // in the details
		class  string
	}{
		"status of upstream":            {upstream.Err(), codes.ResourceExhausted, "from upstream", "upstream", ""},
		"wrapped status":                {fmt.Errorf("list: %w", upstream.Err()), codes.ResourceExhausted, "list: ", "upstream", ""},
		"errdefs class":                 {fmt.Errorf("x: %w", errdefs.ErrNotFound), codes.NotFound, "x: not found", "", ""},
		"internal":                      {fmt.Errorf("x: %w", errdefs.ErrInternal), codes.Internal, "x: ", "", ""},
		"no class":                      {errors.New("x"), codes.Unknown, "x", "", ""},
		"canceled":                      {fmt.Errorf("x: %w", context.Canceled), codes.Canceled, "x: ", "", ""},
		"timeout of the caller":         {context.DeadlineExceeded, codes.DeadlineExceeded, "context", "", ""},
		"unknown handler":               {typed(imagepin.UnknownRuntimeHandler, errdefs.ErrInvalidArgument), codes.InvalidArgument, "UnknownRuntimeHandler: r for t", "UnknownRuntimeHandler", "InvalidArgument"},
		"no platform":                   {typed(imagepin.NoMatchingPlatform, errdefs.ErrNotFound), codes.NotFound, "NoMatchingPlatform: ", "NoMatchingPlatform", "NotFound"},
		"denied":                        {typed(imagepin.PullAccessDenied, errdefs.ErrPermissionDenied), codes.PermissionDenied, "PullAccessDenied: ", "PullAccessDenied", "PermissionDenied"},
		"unauthenticated":               {typed(imagepin.PullAccessDenied, errdefs.ErrUnauthenticated), codes.Unauthenticated, "PullAccessDenied: ", "PullAccessDenied", "Unauthenticated"},
		"no manifest":                   {typed(imagepin.CannotPullImageManifest, errdefs.ErrNotFound), codes.NotFound, "CannotPullImageManifest: ", "CannotPullImageManifest", "NotFound"},
		"registry unavailable":          {typed(imagepin.CannotPullImageManifest, errdefs.ErrUnavailable), codes.Unknown, unavailable + "CannotPullImageManifest: ", "CannotPullImageManifest", "Unavailable"},
		"registry unavailable later":    {typed(imagepin.CannotPullImage, errdefs.ErrUnavailable), codes.Unknown, unavailable + "CannotPullImage: ", "CannotPullImage", "Unavailable"},
		"registry unavailable, wrapped": {fmt.Errorf("pull: %w", typed(imagepin.CannotPullImage, errdefs.ErrUnavailable)), codes.Unknown, unavailable + "pull: ", "CannotPullImage", "Unavailable"},
		"timeout":                       {typed(imagepin.ManifestPullTimeout, context.DeadlineExceeded), codes.Unknown, unavailable + "ManifestPullTimeout: ", "ManifestPullTimeout", "DeadlineExceeded"},
		"timed out":                     {typed(imagepin.PullTimedOut, context.DeadlineExceeded), codes.DeadlineExceeded, "PullTimedOut: ", "PullTimedOut", "DeadlineExceeded"},
		"stalled":                       {typed(imagepin.PullStalled, context.DeadlineExceeded), codes.Unknown, unavailable + "PullStalled: ", "PullStalled", "DeadlineExceeded"},
		"verifier":                      {typed(imagepin.ImageVerificationFailed, errdefs.ErrPermissionDenied), codes.Unknown, signature + "ImageVerificationFailed: ", "ImageVerificationFailed", "PermissionDenied"},
		"corrupt":                       {typed(imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition), codes.FailedPrecondition, "ContentCorrupt: ", "ContentCorrupt", "FailedPrecondition"},
		"class overrides the cause":     {&imagepin.Error{Reason: imagepin.UpstreamNotSynced, Class: errdefs.ErrUnavailable, Err: upstream.Err()}, codes.Unavailable, "UpstreamNotSynced: ", "UpstreamNotSynced", "Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			got := status.Convert(toStatus(c.err))
			if got.Code() != c.code || !strings.HasPrefix(got.Message(), c.text) {
				t.Errorf("got %s, %q, want %s, %q", got.Code(), got.Message(), c.code, c.text)
			}
			if c.reason == "" {
				return
			}
			if len(got.Details()) != 1 {
				t.Fatalf("got details %v, want one", got.Details())
			}
			info := got.Details()[0].(*errdetails.ErrorInfo)
			if info.GetReason() != c.reason || info.GetMetadata()["class"] != c.class {
				t.Errorf("got details %v, want reason %q and class %q", info, c.reason, c.class)
			}
		})
	}
	if toStatus(nil) != nil {
		t.Error("toStatus(nil) is not nil")
	}
	// kubelet recognizes these texts.
	if unavailable != crierrors.ErrRegistryUnavailable.Error()+": " || signature != crierrors.ErrSignatureValidationFailed.Error()+": " {
		t.Error("kubelet's texts have changed")
	}
}

// TestStatusIsBounded checks that a status has a bounded text and the class of its error, however long the error is.
func TestStatusIsBounded(t *testing.T) {
	long := errors.New(strings.Repeat("x", 1<<20))
	typed := &imagepin.Error{Reason: imagepin.ManifestPullTimeout, Ref: long.Error(), Class: context.DeadlineExceeded, Err: long, Hint: "Do this."}
	for name, err := range map[string]error{
		"typed": typed, "wrapped": fmt.Errorf("%w: %w", long, typed), "no class": long, "class": fmt.Errorf("%w: %w", long, errdefs.ErrNotFound),
		"bytes": fmt.Errorf("\xff%w: %w", long, errdefs.ErrNotFound),
	} {
		for which, convert := range map[string]func(error) error{"for kubelet": toStatus, "plain": plainStatus} {
			s := status.Convert(convert(err))
			if len(s.Message()) > imagepin.MaxErrorText || !utf8.ValidString(s.Message()) {
				t.Errorf("%s, %s: message of %d bytes is too long or is not UTF-8", name, which, len(s.Message()))
			}
			if name == "typed" && (!strings.HasSuffix(s.Message(), "\nDo this.") || len(s.Details()) != 1) {
				t.Errorf("%s: message without hint or details: %.200s", which, s.Message())
			}
			if name == "class" && s.Code() != codes.NotFound {
				t.Errorf("got code %s, want NotFound", s.Code())
			}
		}
	}
}
