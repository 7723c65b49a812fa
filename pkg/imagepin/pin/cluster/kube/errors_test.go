package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// want checks the reason, the class and a part of the text of an error.
func want(t *testing.T, err error, reason imagepin.Reason, class error, text string) {
	t.Helper()
	var e *imagepin.Error
	if !errors.As(err, &e) || e.Reason != reason || e.Class != class || !errors.Is(err, class) {
		t.Errorf("got error %v, want %s (%v)", err, reason, class)
		return
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("got error %v, want one with %q", err, text)
	}
}

func wantUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	want(t, err, imagepin.ClusterUnavailable, errdefs.ErrUnavailable, text)
}

// TestConnectionLost checks the errors of net/http for a connection that ends while a request is sent or answered.
func TestConnectionLost(t *testing.T) {
	post := func(err error) error { return &url.Error{Op: "Post", URL: "https://api.example", Err: err} }
	for _, err := range []error{
		post(io.EOF),
		post(io.ErrUnexpectedEOF),
		post(&net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}),
		post(&net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}),
		post(errors.New("http2: client connection lost")),
		post(errors.New("http2: client conn is closed")),
		post(errors.New(`http2: server sent GOAWAY and closed the connection; LastStreamID=3, ErrCode=NO_ERROR, debug=""`)),
	} {
		if !connectionLost(err) {
			t.Errorf("%v: the connection was lost", err)
		}
	}
	for _, err := range []error{
		nil,
		post(context.DeadlineExceeded),
		post(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}),
	} {
		if connectionLost(err) {
			t.Errorf("%v: no connection was lost", err)
		}
	}
}
