//go:build !linux

package replace

import "github.com/containerd/errdefs"

func exchangeDirectories(string, string) error { return errdefs.ErrNotImplemented }

func writable(string) error { return errdefs.ErrNotImplemented }

func syncParents([]string) error { return errdefs.ErrNotImplemented }

func kernelParameter(string) bool { return true }

func mountPoints([]string) ([]string, error) { return nil, errdefs.ErrNotImplemented }
