package command

import (
	"context"
	"net"

	"github.com/containerd/containerd/v2/pkg/dialer"
)

func dial(ctx context.Context, address string) (net.Conn, error) {
	return dialer.ContextDialer(ctx, address)
}

// socketGroup returns "": a named pipe has no group.
func socketGroup(string) string { return "" }
