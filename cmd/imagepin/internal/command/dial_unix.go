//go:build !windows

package command

import (
	"context"
	"net"
)

// dial fails at once if the socket does not exist. containerd's dialer waits for it.
func dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", address)
}
