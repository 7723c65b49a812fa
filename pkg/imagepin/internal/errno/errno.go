// Package errno distinguishes errors of the node's file systems from those of the network. Both have a number of the
// operating system, and syscall.Errno implements net.Error whatever its number is.
package errno

import (
	"net"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
)

// Cause is what has caused an error.
type Cause struct {
	Kind Kind
	// Number is the number of an error of this node; 0 for other errors.
	Number syscall.Errno
}

// Kind is what an error is about.
type Kind int

const (
	// Other: neither the network nor the file systems of this node.
	Other Kind = iota
	// Connection: a connection of the network.
	Connection
	// Request: what was requested, for example a file of a layer that the file system cannot store. It fails again.
	Request
	// Space: a file system or a quota is full.
	Space
	// Limit: a limit of the process or of the node is reached.
	Limit
	// Disk: the disk or its file system has failed, or is read-only.
	Disk
)

// Local reports whether the error is one of this node.
func (c Cause) Local() bool { return c.Kind >= Request }

// CauseOf returns the cause of err. The number of a *net.OpError or a *net.DNSError is one of the network. An error that has crossed
// containerd's socket keeps only its text (errgrpc.ToNative of containerd/errdefs), with the class ErrUnknown.
func CauseOf(err error) Cause {
	no, ok := local(err)
	switch {
	case ok:
		return Cause{kindOf(no), no}
	case Network(err):
		return Cause{Kind: Connection}
	}
	return Cause{}
}

// local returns the number of an error of this node.
func local(err error) (no syscall.Errno, ok bool) {
	visit(err, func(err error) bool {
		switch e := err.(type) {
		case *net.OpError, *net.DNSError:
			return false
		case syscall.Errno:
			no, ok = e, true
		}
		return !ok
	})
	if ok {
		return no, ok
	}
	visit(err, func(err error) bool {
		if _, network := err.(net.Error); ok || network {
			return false
		}
		if errdefs.Resolve(err) == errdefs.ErrUnknown && !Network(err) {
			no, ok = inText(err.Error())
		}
		return !ok
	})
	return no, ok
}

func kindOf(no syscall.Errno) Kind {
	switch no {
	case syscall.ENOSPC, syscall.EDQUOT:
		return Space
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM:
		return Limit
	case syscall.EIO, syscall.EROFS, syscall.ESTALE, syscall.ENODEV, syscall.ENXIO:
		return Disk
	}
	return Request
}

// Is reports whether the number of an error of this node is one of numbers.
func Is(err error, numbers ...syscall.Errno) bool {
	no, ok := local(err)
	return ok && slices.Contains(numbers, no)
}

// NoSpace reports whether a file system or a quota is full.
func NoSpace(err error) bool { return CauseOf(err).Kind == Space }

// Passing reports whether err is about the state of this node, so that the same request can succeed later.
func Passing(err error) bool { return CauseOf(err).Kind >= Space }

// Network reports whether err is an error of a network connection.
func Network(err error) bool {
	found := false
	visit(err, func(err error) bool {
		_, number := err.(syscall.Errno)
		_, network := err.(net.Error)
		found = found || network && !number
		return !found
	})
	return found
}

// visit calls fn for err and for what it wraps, as errors.As does. It leaves out what an error wraps for which fn returns
// false.
func visit(err error, fn func(error) bool) {
	if err == nil || !fn(err) {
		return
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		visit(e.Unwrap(), fn)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			visit(err, fn)
		}
	}
}

// textual are the numbers that are recognized by their text: those of file systems.
var textual = []syscall.Errno{
	syscall.EPERM, syscall.ENOENT, syscall.EIO, syscall.ENXIO, syscall.ENOMEM, syscall.EACCES, syscall.EBUSY, syscall.EEXIST,
	syscall.EXDEV, syscall.ENODEV, syscall.ENOTDIR, syscall.EISDIR, syscall.EINVAL, syscall.ENFILE, syscall.EMFILE,
	syscall.ETXTBSY, syscall.EFBIG, syscall.ENOSPC, syscall.EROFS, syscall.EMLINK, syscall.ENAMETOOLONG, syscall.ENOSYS,
	syscall.ENOTEMPTY, syscall.ELOOP, syscall.EOVERFLOW, syscall.EOPNOTSUPP, syscall.ESTALE, syscall.EDQUOT,
}

// inText returns the number whose text is the cause in text: what follows a colon and ends a line, or has a remark in
// parentheses after it. The last one is the cause of the others, and may follow names of files of an image.
func inText(text string) (found syscall.Errno, ok bool) {
	last := -1
	for _, no := range textual {
		if at := lastCause(text, no.Error()); at > last {
			last, found = at, no
		}
	}
	return found, last >= 0
}

// lastCause returns where cause is last in text, or -1.
func lastCause(text, cause string) int {
	for end := len(text); ; {
		at := strings.LastIndex(text[:end], cause)
		if at < 0 {
			return -1
		}
		before, after := text[:at], text[at+len(cause):]
		if (before == "" || strings.HasSuffix(before, ": ")) &&
			(after == "" || strings.HasPrefix(after, "\n") || strings.HasPrefix(after, " (") || strings.HasPrefix(after, ": "+errdefs.ErrUnknown.Error())) {
			return at
		}
		end = at
	}
}
