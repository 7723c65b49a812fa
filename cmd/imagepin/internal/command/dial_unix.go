//go:build !windows

package command

import (
	"context"
	"net"
)

// dial fails at once where there is no socket, unlike containerd's dialer,
// which waits for one.
func dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", address)
}
