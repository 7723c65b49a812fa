//go:build !linux

package durable

import (
	"context"
	"os"

	"github.com/containerd/errdefs"
)

const maxWrites = 1

func ordered(*os.File) bool { return false }

func (*Barrier) beginTree(string) {}

func writeData(int) error { return errdefs.ErrNotImplemented }

func fsync(int) error { return errdefs.ErrNotImplemented }

func (*Barrier) syncTrees(context.Context, string, ...string) error { return errdefs.ErrNotImplemented }
