// Package port reserves TCP ports for servers that a test starts later, or stops and starts again.
//
// A port that is only known to be free now can be given to another process before the server listens on it.
package port

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"syscall"
)

// Reservation is a TCP port of 127.0.0.1 that the kernel gives to nobody who asks for any free port. A server that asks
// for this port can listen on it, if it sets SO_REUSEADDR as servers do. While nobody listens, connections are refused.
type Reservation struct {
	addr   netip.AddrPort
	socket int
	close  sync.Once
}

// Reserve reserves a free port. Close the reservation when no server needs the port any more.
func Reserve() (*Reservation, error) {
	// A socket that is bound and does not listen. inet_csk_get_port in net/ipv4/inet_connection_sock.c lets another
	// socket with SO_REUSEADDR bind to the same port only if it asks for this port.
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	r := &Reservation{socket: socket}
	if err := r.bind(); err != nil {
		r.Close()
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return r, nil
}

func (r *Reservation) bind() error {
	if err := syscall.SetsockoptInt(r.socket, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := syscall.Bind(r.socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	bound, err := syscall.Getsockname(r.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	in4 := bound.(*syscall.SockaddrInet4)
	r.addr = netip.AddrPortFrom(netip.AddrFrom4(in4.Addr), uint16(in4.Port))
	return nil
}

// Addr returns the address, for example "127.0.0.1:36251".
func (r *Reservation) Addr() string { return r.addr.String() }

// Port returns the port, for example "36251".
func (r *Reservation) Port() string { return fmt.Sprint(r.addr.Port()) }

// Close ends the reservation. A server that listens on the port is not affected. Further calls do nothing: the number of the
// socket may belong to another file.
func (r *Reservation) Close() { r.close.Do(func() { syscall.Close(r.socket) }) }
