// Package pieces splits lists of messages so that each part fits in one message of a gRPC stream: kubelet, crictl and
// containerd's socket accept 16 MiB.
package pieces

import (
	"iter"

	"google.golang.org/protobuf/proto"
)

const (
	// Count is the maximum number of messages in a piece.
	Count = 500
	// Bytes is the maximum size of a piece. A single message can be larger.
	Bytes = 4 << 20
)

// Split returns the pieces of a list, in order. No piece is empty.
func Split[M proto.Message](all []M) iter.Seq[[]M] {
	return func(yield func([]M) bool) {
		first, size := 0, 0
		for i, m := range all {
			more := proto.Size(m)
			if i > first && (i-first == Count || size+more > Bytes) {
				if !yield(all[first:i]) {
					return
				}
				first, size = i, 0
			}
			size += more
		}
		if first < len(all) {
			yield(all[first:])
		}
	}
}
