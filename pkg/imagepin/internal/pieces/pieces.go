// Package pieces cuts lists of messages into what one message of a gRPC stream
// may hold: kubelet, crictl and containerd's socket take 16 MiB.
package pieces

import (
	"iter"

	"google.golang.org/protobuf/proto"
)

const (
	// Count is how many messages a piece has at most.
	Count = 500
	// Bytes is how large a piece is at most, but for one message that is larger
	// by itself.
	Bytes = 4 << 20
)

// Of gives the pieces of a list, in its order. None is empty.
func Of[M proto.Message](all []M) iter.Seq[[]M] {
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
