package pull

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func TestPullErrors(t *testing.T) {
	target := runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "native"}
	const ref = "registry.example/app:1"
	noJSON := json.Unmarshal([]byte("<html>"), &struct{}{})
	for name, c := range map[string]struct {
		err   error
		name  imagepin.Reason
		class error
	}{
		"gzip header":           {fmt.Errorf("apply: %w", gzip.ErrHeader), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"gzip checksum":         {gzip.ErrChecksum, imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"tar header":            {tar.ErrHeader, imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"cut layer":             {io.ErrUnexpectedEOF, imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"text only":             {errors.New("rpc error: code = Unknown desc = failed to extract: gzip: invalid header"), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"text of deflate":       {errors.New("rpc error: code = Unknown desc = failed to extract: flate: corrupt input before offset 5"), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"digest of content":     {fmt.Errorf("unexpected commit digest sha256:1, expected sha256:2: %w", errdefs.ErrFailedPrecondition), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"size of content":       {fmt.Errorf("unexpected commit size 1, expected 2: %w", errdefs.ErrFailedPrecondition), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"wrong diff ID":         {errors.New("wrong diff id calculated on extraction"), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"layers and diff IDs":   {errors.New("number of layers and diffIDs don't match: 1 != 2"), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"not JSON":              {fmt.Errorf("manifest: %w", noJSON), imagepin.ContentCorrupt, errdefs.ErrFailedPrecondition},
		"disk full":             {fmt.Errorf("write: %w", syscall.ENOSPC), imagepin.CannotPullImage, errdefs.ErrResourceExhausted},
		"missing blob":          {fmt.Errorf("content: %w", errdefs.ErrNotFound), imagepin.CannotPullImage, errdefs.ErrNotFound},
		"network":               {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"network timeout":       {&net.DNSError{Err: "i/o timeout", IsTimeout: true}, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"socket of the network": {RegistryError{syscall.ECONNRESET}, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"anything else":         {errors.New("what"), imagepin.CannotPullImage, errdefs.ErrUnknown},
		"with a class":          {fmt.Errorf("busy: %w", errdefs.ErrUnavailable), imagepin.CannotPullImage, errdefs.ErrAborted},
		"registry with a class": {RegistryError{fmt.Errorf("busy: %w", errdefs.ErrUnavailable)}, imagepin.CannotPullImage, errdefs.ErrUnavailable},
		"stalled":               {fmt.Errorf("%w: %w", errStalled, context.Canceled), imagepin.PullStalled, context.DeadlineExceeded},
		"stalled, and typed":    {fmt.Errorf("%w: %w", errStalled, &imagepin.Error{Reason: imagepin.CannotPullImage}), imagepin.PullStalled, context.DeadlineExceeded},
		"typed already":         {fmt.Errorf("x: %w", &imagepin.Error{Reason: imagepin.NoMatchingPlatform, Class: errdefs.ErrNotFound}), imagepin.NoMatchingPlatform, errdefs.ErrNotFound},
		"typed for another ref": {&imagepin.Error{Reason: imagepin.PullAccessDenied, Ref: "r", Target: "t", Class: errdefs.ErrPermissionDenied}, imagepin.PullAccessDenied, errdefs.ErrPermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			var e *imagepin.Error
			if err := complete(c.err, imagepin.CannotPullImage, ref, target); !errors.As(err, &e) {
				t.Fatalf("got an untyped error: %v", err)
			}
			if e.Reason != c.name || e.Class != c.class || e.Ref != ref || e.Target != target.String() {
				t.Errorf("got %s, %v: %v, want %s, %v", e.Reason, e.Class, e, c.name, c.class)
			}
			if name != "anything else" && name != "registry with a class" && !strings.HasPrefix(name, "typed") && e.Hint == "" {
				t.Errorf("the error has no hint: %v", e)
			}
		})
	}

	if err := complete(context.Canceled, imagepin.CannotPullImage, ref, target); err != context.Canceled {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	known := &imagepin.Error{Reason: imagepin.NoMatchingPlatform}
	if _ = complete(known, imagepin.CannotPullImage, ref, target); known.Ref != "" {
		t.Error("a shared error was modified")
	}
	leaky := complete(errors.New(`Get "https://h/p?sig=hush": EOF`), imagepin.CannotPullImage, ref, target)
	if strings.Contains(leaky.Error(), "hush") {
		t.Errorf("the error contains a signature: %v", leaky)
	}
}

func TestWithCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	err := errors.New("consequence")
	if withCause(ctx, err) != err {
		t.Error("withCause changed an error although the context is not canceled")
	}
	cancel(errStalled)
	if got := withCause(ctx, err); !errors.Is(got, errStalled) || !errors.Is(got, err) {
		t.Errorf("got %v, want %v and %v", got, errStalled, err)
	}
	canceled, cancel := context.WithCancelCause(t.Context())
	cancel(nil)
	if withCause(canceled, err) != err {
		t.Error("withCause changed the error of a caller's cancellation")
	}
}

func TestParseReference(t *testing.T) {
	const d = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for in, want := range map[string]string{
		"busybox":                      "docker.io/library/busybox:latest",
		"user/app:1":                   "docker.io/user/app:1",
		"localhost:5000/app":           "localhost:5000/app:latest",
		"registry.example/a/b/c:1" + d: "registry.example/a/b/c" + d,
		"":                             "",
		"registry.example/UPPER":       "",
		"a:b:c":                        "",
	} {
		got, err := imagepin.ParseReference(in)
		if want == "" {
			var e *imagepin.Error
			if !errors.As(err, &e) || e.Reason != imagepin.InvalidReference || !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: got %v, %v, want reason InvalidReference", in, got, err)
			}
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%q: got %v, %v, want %s", in, got, err, want)
		}
	}
}

// TestErrorsOfTheNode checks that an error of the node is not one of the registry, whether it has its type or only its text.
// kubelet recognizes errors of registries by their class, ErrUnavailable.
func TestErrorsOfTheNode(t *testing.T) {
	target := runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "native"}
	const layer = "failed to extract layer (t d) to native as \"k\""
	for _, c := range []struct {
		in    string
		no    syscall.Errno
		class error
		hint  string
	}{
		{layer, syscall.EEXIST, errdefs.ErrInternal, "snapshotter native cannot store this layer. The layer has two entries of one name"},
		{layer, syscall.ENAMETOOLONG, errdefs.ErrInternal, "a name that is too long"},
		{layer, syscall.ENOENT, errdefs.ErrInternal, "a hard link to a file that it does not have"},
		{layer, syscall.EPERM, errdefs.ErrInternal, "may not allow device files"},
		{layer, syscall.EACCES, errdefs.ErrInternal, "may not allow device files"},
		{layer, syscall.EOPNOTSUPP, errdefs.ErrInternal, "may not allow device files"},
		{layer, syscall.ENOTDIR, errdefs.ErrInternal, "cannot store this layer"},
		{layer, syscall.ELOOP, errdefs.ErrInternal, "cannot store this layer"},
		{layer, syscall.EIO, errdefs.ErrInternal, "Check the disk"},
		{layer, syscall.EROFS, errdefs.ErrInternal, "Check the disk"},
		{layer, syscall.EMFILE, errdefs.ErrResourceExhausted, "LimitNOFILE"},
		{layer, syscall.EDQUOT, errdefs.ErrResourceExhausted, "Free space"},
		{layer, syscall.ENOSPC, errdefs.ErrResourceExhausted, "Free space"},
		{"write /c/ingest/1/data", syscall.EIO, errdefs.ErrInternal, "Check the disk"},
		{"open writer", syscall.EACCES, errdefs.ErrInternal, "the permissions of containerd"},
		{"failed to prepare extraction snapshot", syscall.EEXIST, errdefs.ErrInternal, "Check the filesystem"},
	} {
		for _, err := range []error{
			fmt.Errorf("%s: %w", c.in, &fs.PathError{Op: "mknod", Path: "/f", Err: c.no}),
			fmt.Errorf("%s: %w", c.in, errgrpc.ToNative(errgrpc.ToGRPC(fmt.Errorf("mknod /f: %w", c.no)))),
		} {
			var e *imagepin.Error
			if !errors.As(complete(err, imagepin.CannotPullImage, "registry.example/app:1", target), &e) {
				t.Fatalf("%v: no imagepin.Error", err)
			}
			if e.Class != c.class || errdefs.IsUnavailable(e) || e.Message == "" || !strings.Contains(e.Hint, c.hint) || !strings.Contains(e.Error(), c.no.Error()) {
				t.Errorf("%v: got class %v: %v", err, e.Class, e)
			}
		}
	}
}
