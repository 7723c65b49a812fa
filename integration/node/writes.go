package node

import (
	"encoding/binary"
	"fmt"
	"os"
)

// MetadataWrites returns the number of transactions committed to containerd's metadata database. Each is at least one
// sync to disk. The number is in the newer of the database's two meta pages (go.etcd.io/bbolt/internal/common/meta.go).
func (n *Node) MetadataWrites() (uint64, error) {
	const (
		header, fields = 16, 64 // sizes of a page's header and of its meta
		magic          = 0xED0CDAED
		pageSize, txid = 8, 48 // offsets in a meta
	)
	f, err := os.Open(n.Path("root", "io.containerd.metadata.v1.bolt", "meta.db"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	read := func(page int64) ([]byte, error) {
		meta := make([]byte, fields)
		if _, err := f.ReadAt(meta, page+header); err != nil {
			return nil, err
		}
		if got := binary.NativeEndian.Uint32(meta); got != magic {
			return nil, fmt.Errorf("%s: no meta page at %d: %x", f.Name(), page, got)
		}
		return meta, nil
	}
	first, err := read(0)
	if err != nil {
		return 0, err
	}
	second, err := read(int64(binary.NativeEndian.Uint32(first[pageSize:])))
	if err != nil {
		return 0, err
	}
	return max(binary.NativeEndian.Uint64(first[txid:]), binary.NativeEndian.Uint64(second[txid:])), nil
}
