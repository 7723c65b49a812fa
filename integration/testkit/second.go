package testkit

import "github.com/imagepin/imagepin/integration/node"

// WithSecond returns the options for a node with the handler [Second] on a snapshotter, see [SecondSnapshotters].
func WithSecond(snapshotter string, opts node.Options) node.Options {
	opts.Handlers = append(opts.Handlers, node.Handler{Name: Second, Snapshotter: snapshotter})
	if snapshotter == node.EROFS {
		return node.WithEROFS(opts)
	}
	return opts
}

// SecondSnapshotters are the snapshotters with which the main scenarios run beside overlayfs.
var SecondSnapshotters = []string{"native", node.EROFS}
