//go:build !windows

package command

import (
	"context"
	"net"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// dial fails at once if the socket does not exist. containerd's dialer waits for it.
func dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", address)
}

// socketGroup returns the group that may connect to a socket, if that is not the group of root; otherwise "".
func socketGroup(address string) string {
	info, err := os.Stat(address)
	if err != nil || info.Mode().Perm()&0o020 == 0 {
		return ""
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Gid == 0 {
		return ""
	}
	id := strconv.FormatUint(uint64(stat.Gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
