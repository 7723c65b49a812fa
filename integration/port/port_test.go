package port

import (
	"net"
	"testing"
)

// TestReserved opens so many listeners that each free port has a good chance, and gets no reserved port.
func TestReserved(t *testing.T) {
	reserved := make(map[string]bool)
	for range 500 {
		r, err := Reserve()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if reserved[r.Addr()] {
			t.Fatalf("%s is reserved twice", r.Addr())
		}
		reserved[r.Addr()] = true
	}
	for range 500 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if reserved[l.Addr().String()] {
			t.Fatalf("%s is reserved, and was given to another server", l.Addr())
		}
	}
}
