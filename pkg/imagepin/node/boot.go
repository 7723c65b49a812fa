package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/atomicfile"
	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
)

const (
	// bootFile has the ID of the last boot in which all images were compared. It is beside the node's key.
	bootFile = "boot"
	// bootID and uptime are from proc(5): the ID of the running boot, and the seconds since it began.
	bootID = "/proc/sys/kernel/random/boot_id"
	uptime = "/proc/uptime"
)

// boot is the running boot of the node's kernel.
type boot struct {
	path string
	id   string
	// began is when it began, by the clock of now.
	began time.Time
	// sync makes the snapshots of an image durable. It may be nil.
	sync func(ctx context.Context, e imagepin.Entry) error
}

// newBoot returns the running boot. It returns nil on a system without boot IDs.
func newBoot(dir string, sync func(context.Context, imagepin.Entry) error) *boot {
	id, err := os.ReadFile(bootID)
	if err != nil {
		return nil
	}
	b := &boot{path: filepath.Join(dir, bootFile), id: strings.TrimSpace(string(id)), sync: sync}
	if up, err := os.ReadFile(uptime); err == nil {
		seconds, _, _ := strings.Cut(string(up), " ")
		if s, err := strconv.ParseFloat(seconds, 64); err == nil {
			b.began = time.Now().Add(-time.Duration(s * float64(time.Second)))
		}
	}
	return b
}

// ID implements reconcile.Boot.
func (b *boot) ID() string { return b.id }

func (b *boot) last() (string, error) {
	last, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the ID of the last boot: %w", err)
	}
	return strings.TrimSpace(string(last)), nil
}

// Compared implements reconcile.Boot.
func (b *boot) Compared() (bool, error) {
	last, err := b.last()
	return last == b.id, err
}

// Older implements reconcile.Boot. After another boot, everything without a mark is older: clocks go wrong. Without a record of a boot,
// an earlier release may have made it in this one.
func (b *boot) Older(at time.Time) bool {
	last, err := b.last()
	return err != nil || last != "" || at.Before(b.began)
}

// SetCompared implements reconcile.Boot.
func (b *boot) SetCompared() error {
	if last, err := b.last(); err == nil && last == b.id {
		return nil
	}
	f, err := atomicfile.New(b.path, 0o600)
	if err != nil {
		return fmt.Errorf("record the boot: %w", err)
	}
	if _, err := f.Write([]byte(b.id + "\n")); err != nil {
		_ = f.Cancel()
		return fmt.Errorf("record the boot: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("record the boot: %w", err)
	}
	return nil
}

// Sync implements reconcile.Boot.
func (b *boot) Sync(ctx context.Context, e imagepin.Entry) error {
	if b.sync == nil {
		return fmt.Errorf("make snapshots durable: %w", errdefs.ErrNotImplemented)
	}
	return b.sync(ctx, e)
}

// boot returns the running boot for the reconciler.
func (n *Node) boot() reconcile.Boot {
	if b := newBoot(filepath.Dir(n.nodeKey), nil); b != nil {
		return b
	}
	return nil
}
