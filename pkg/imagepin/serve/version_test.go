//go:build unix

package serve

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

func TestTooOld(t *testing.T) {
	for _, version := range []string{"v2.1.0", "2.1.9+unknown", "v2.4.2+imagepin", "v2.10.0", "3.0.0-beta.1", "v2.1", "v2.1.5-k3s1.33", "", "dev", "8e7e32f.m", "2024", "20240101.1.2"} {
		if err := tooOld(version); err != nil {
			t.Errorf("%q: got %v, want no error", version, err)
		}
	}
	for _, version := range []string{"1.6.20~ds1", "1.7.24~ds1", "v2.0.5", "v2.0.0-rc.1", "1.10.0", "2.0"} {
		err := tooOld(version)
		if !errors.Is(err, errIncompatible) || !strings.Contains(err.Error(), "containerd "+version+", but 2.1 or later") {
			t.Errorf("%q: got %v, want %v", version, err, errIncompatible)
		}
		if isUnavailable(err) {
			t.Errorf("%q: isUnavailable is true, but waiting does not help", version)
		}
	}
}

// TestUnknownVersion checks that a disabled version service of containerd is not an error, but a stopped containerd is.
func TestUnknownVersion(t *testing.T) {
	address := filepath.Join(t.TempDir(), "containerd.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	server, served := grpc.NewServer(), make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	c, err := dialContainerd(address, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.checkVersion(t.Context()); err != nil {
		t.Errorf("without the version service: got %v, want no error", err)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := c.checkVersion(t.Context()); err == nil || !isUnavailable(err) || !strings.Contains(err.Error(), address) {
		t.Errorf("without containerd: got %v, want an error with %s", err, address)
	}
	if err := c.checkVersion(t.Context()); err == nil || strings.Contains(err.Error(), "transport") || !strings.HasSuffix(err.Error(), ": connect: no such file or directory") {
		t.Errorf("without containerd: got %v, want only the reason of the system", err)
	}
	if err := c.conn.Close(); err != nil {
		t.Error(err)
	}
}
