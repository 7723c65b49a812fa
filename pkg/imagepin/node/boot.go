package node

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// uptime is the file with the seconds since the running boot began, see proc(5).
const uptime = "/proc/uptime"

// boot is the running boot of the node's kernel.
type boot struct {
	node *Node
	// began is when it began, by the clock of now.
	began time.Time
}

// boot returns the running boot for the reconciler. It returns nil on a system without boot IDs.
func (n *Node) boot() reconcile.Boot {
	if durable.BootID() == "" {
		return nil
	}
	b := &boot{node: n}
	if up, err := os.ReadFile(uptime); err == nil {
		seconds, _, _ := strings.Cut(string(up), " ")
		if s, err := strconv.ParseFloat(seconds, 64); err == nil {
			b.began = time.Now().Add(-time.Duration(s * float64(time.Second)))
		}
	}
	return b
}

// ID implements reconcile.Boot.
func (*boot) ID() string { return durable.BootID() }

// Compared implements reconcile.Boot.
func (b *boot) Compared() (bool, error) { return b.node.compared.Settled() }

// SetCompared implements reconcile.Boot.
func (b *boot) SetCompared() error {
	if done, err := b.node.compared.Settled(); done && err == nil {
		return nil
	}
	return b.node.compared.Settle()
}

// Older implements reconcile.Boot. After another boot, everything without a mark is older: clocks go wrong. Without a record of a boot,
// an earlier release may have made it in this one.
func (b *boot) Older(at time.Time) bool {
	ever, err := b.node.compared.Ever()
	return err != nil || ever || b.Before(at)
}

// Before implements reconcile.Boot.
func (b *boot) Before(at time.Time) bool { return at.Before(b.began) }

// Sync implements reconcile.Boot.
func (b *boot) Sync(ctx context.Context, e imagepin.Entry) error {
	makeDurable := b.node.active.Load().pull.Durable
	if makeDurable == nil {
		return fmt.Errorf("make snapshots durable: %w", errdefs.ErrNotImplemented)
	}
	mark, err := makeDurable(ctx, store.Snapshot{Snapshotter: e.Target.Snapshotter, ChainID: e.ChainID})
	if err == nil && mark == "" {
		err = fmt.Errorf("make snapshots in %s durable: %w", e.Target.Snapshotter, errdefs.ErrNotImplemented)
	}
	return err
}
