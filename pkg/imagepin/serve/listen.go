//go:build unix

package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
)

// listener returns the socket that the CRI is served on: the socket that systemd has opened (socket activation), or
// else a new one at address.
func listener(address string) (net.Listener, error) {
	given, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	switch {
	case len(given) == 0:
		return listenUnix(address)
	case len(given) > 1:
		return nil, fmt.Errorf("socket activation: got %d sockets, want one", len(given))
	}
	if _, ok := given[0].(*net.UnixListener); !ok {
		return nil, errors.New("socket activation: not a unix socket")
	}
	return given[0], nil
}

// listenUnix creates a socket that only root, or the user of this process, can connect to. It removes the socket of a
// process that was killed. It fails if another process listens on the address.
func listenUnix(address string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(address), 0o711); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", address, 5*time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: another process is listening on it", address)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// If the mode were changed later, it would be too wide for a moment.
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", address)
}
