//go:build !linux

package durable

import (
	"context"
	"os"

	"github.com/containerd/errdefs"
)

const maxWrites = 1

type slots chan struct{}

func writesRanges() bool { return false }

func ordered(*os.File) bool { return false }

func (*Barrier) writeTree(string) error { return errdefs.ErrNotImplemented }

func writeData(int) error { return errdefs.ErrNotImplemented }

func fsync(int) error { return errdefs.ErrNotImplemented }

func (*Barrier) syncTrees(context.Context, string, ...*Tree) error { return errdefs.ErrNotImplemented }
