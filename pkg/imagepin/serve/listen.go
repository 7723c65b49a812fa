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

// listener is the socket that the CRI is served on: the one that systemd has
// opened (socket activation), else one at an address.
func listener(address string) (net.Listener, error) {
	given, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	switch {
	case len(given) == 0:
		return listenUnix(address)
	case len(given) > 1:
		return nil, fmt.Errorf("socket activation: there are %d sockets, and the CRI is served on one", len(given))
	}
	if _, ok := given[0].(*net.UnixListener); !ok {
		return nil, errors.New("socket activation: what is given is not a unix socket")
	}
	return given[0], nil
}

// listenUnix makes a socket that only root, or whom this process runs as, can
// reach. What a process that was killed has left is removed; that another is
// listening there is an error.
func listenUnix(address string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(address), 0o711); err != nil {
		return nil, err
	}
	if c, err := net.DialTimeout("unix", address, 5*time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("%s: another process is serving it", address)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(address); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// Changed after it is made, the mode would be wider for a moment.
	before := syscall.Umask(0o177)
	defer syscall.Umask(before)
	return net.Listen("unix", address)
}
