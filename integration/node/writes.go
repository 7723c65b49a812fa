package node

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
)

// MetadataWrites is how many transactions have been committed to containerd's metadata database: each is at least one sync to disk.
// It stands in the database's two meta pages, of which the newer one counts (go.etcd.io/bbolt/internal/common/meta.go).
func (n *Node) MetadataWrites() (uint64, error) {
	const (
		header, fields = 16, 64 // bytes of a page before its meta, and of that
		magic          = 0xED0CDAED
		pageSize, txid = 8, 48 // where they stand in a meta
	)
	f, err := os.Open(n.Path("root", "io.containerd.metadata.v1.bolt", "meta.db"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var newest uint64
	for offset := int64(0); offset >= 0; {
		meta := make([]byte, fields)
		if _, err := io.ReadFull(io.NewSectionReader(f, offset+header, fields), meta); err != nil {
			return 0, err
		}
		if got := binary.NativeEndian.Uint32(meta); got != magic {
			return 0, fmt.Errorf("%s: no meta page at %d: %x", f.Name(), offset, got)
		}
		newest = max(newest, binary.NativeEndian.Uint64(meta[txid:]))
		if offset > 0 {
			break
		}
		offset = int64(binary.NativeEndian.Uint32(meta[pageSize:]))
	}
	return newest, nil
}
