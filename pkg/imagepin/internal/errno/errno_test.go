package errno

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// onSocket returns an error as it arrives from containerd's socket.
func onSocket(err error) error {
	return errgrpc.ToNative(status.Convert(errgrpc.ToGRPC(err)).Err())
}

// TestUnpackErrors checks every error of unpacking, as it is in this process and as it crosses containerd's socket.
func TestUnpackErrors(t *testing.T) {
	for _, no := range []syscall.Errno{
		syscall.EEXIST, syscall.ENAMETOOLONG, syscall.ENOENT, syscall.EPERM, syscall.EACCES, syscall.EIO, syscall.EROFS, syscall.EMFILE,
		syscall.ENFILE, syscall.EDQUOT, syscall.ENOSPC, syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.EINVAL, syscall.EOPNOTSUPP,
		syscall.EMLINK, syscall.ENOMEM, syscall.ESTALE, syscall.EBUSY, syscall.ENOTEMPTY, syscall.EFBIG,
	} {
		for name, cause := range map[string]error{
			"bare":    no,
			"path":    &fs.PathError{Op: "mkdir", Path: "/a", Err: no},
			"link":    &os.LinkError{Op: "link", Old: "/a", New: "/b", Err: no},
			"syscall": os.NewSyscallError("mount", no),
			"remark":  fmt.Errorf("failed to Lchown: %w (Hint: try increasing the number of subordinate IDs)", no),
			"joined":  errors.Join(errors.New("aborted"), fmt.Errorf("b: %w", no), errors.New("aborted")),
			"a file of the image has the text of another number": &fs.PathError{Op: "open", Path: "/x: cross-device link: /y: file exists", Err: no},
		} {
			err := fmt.Errorf("failed to extract layer: %w", cause)
			for where, err := range map[string]error{
				"here":             err,
				"over the socket":  onSocket(err),
				"text":             errors.New(err.Error()),
				"text with class":  errors.New(err.Error() + ": unknown"),
				"status":           status.Error(codes.Unknown, err.Error()),
				"with a class":     errors.Join(errdefs.ErrResourceExhausted, onSocket(err)),
				"beside a network": errors.Join(&net.OpError{Op: "read", Err: syscall.ECONNRESET}, err),
			} {
				if where == "text with class" && (name == "remark" || name == "joined") {
					continue
				}
				cause := CauseOf(err)
				if !cause.Local() || cause.Number != no {
					t.Errorf("%s, %s, %s: got %+v", no, name, where, cause)
				}
				if !Is(err, no) || Is(err, no+1) || NoSpace(err) != (no == syscall.ENOSPC || no == syscall.EDQUOT) {
					t.Errorf("%s, %s, %s: Is and NoSpace contradict CauseOf", no, name, where)
				}
				if Passing(err) != (cause.Kind != Request) {
					t.Errorf("%s, %s, %s: Passing contradicts CauseOf", no, name, where)
				}
				if Network(err) != (where == "beside a network") {
					t.Errorf("%s, %s, %s: Network returned %v", no, name, where, Network(err))
				}
			}
		}
	}
}

// TestNetworkErrors checks that the number of a network connection is not one of the node.
func TestNetworkErrors(t *testing.T) {
	for name, err := range map[string]error{
		"refused":   &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		"in a URL":  &url.Error{Op: "Get", URL: "https://r/", Err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}},
		"DNS":       &net.DNSError{Err: "no such host", Name: "r", UnwrapErr: syscall.EIO},
		"a socket":  &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENOENT)},
		"a timeout": context.DeadlineExceeded,
		"deadline":  os.ErrDeadlineExceeded,
		"files":     &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)},
	} {
		for _, err := range []error{err, fmt.Errorf("fetch: %w", err), errors.Join(errors.New("x"), err)} {
			if cause := CauseOf(err); cause != (Cause{Kind: Connection}) || !Network(err) {
				t.Errorf("%s: got %+v, %v", name, cause, Network(err))
			}
		}
	}
}

// TestOtherErrors checks errors without a number. Some have the text of one.
func TestOtherErrors(t *testing.T) {
	for _, err := range []error{
		nil, io.EOF, errors.New("what"), errors.New("no space left on device is not the cause"),
		errdefs.ErrPermissionDenied, errdefs.ErrInvalidArgument, onSocket(fmt.Errorf("x: %w", errdefs.ErrPermissionDenied)),
		onSocket(fmt.Errorf("blob: no such file or directory: %w", errdefs.ErrNotFound)),
		status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial unix /run/c.sock: connect: no such file or directory"`),
		onSocket(status.Error(codes.Unavailable, "dial: no such file or directory")),
		errors.New("open /a: no space left on device/b: unexpected EOF"),
	} {
		if cause := CauseOf(err); cause != (Cause{}) || Network(err) || NoSpace(err) || Passing(err) {
			t.Errorf("%v: got %+v, %v", err, cause, Network(err))
		}
	}
}
