package testkit

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

// EROFS is the name of containerd's EROFS snapshotter.
const EROFS = "erofs"

// WithEROFS returns the options for a node with containerd's EROFS snapshotter and its differ, beside overlayfs. The
// differ uses the mkfs.erofs of hack/erofs-utils.sh.
func WithEROFS(opts node.Options) node.Options {
	// Without an entry, stock containerd's transfer service unpacks nothing in a snapshotter.
	transfer := ""
	for _, unpack := range [][2]string{{"overlayfs", ""}, {"native", ""}, {EROFS, EROFS}} {
		transfer += fmt.Sprintf("[[plugins.%q.unpack_config]]\nplatform = %q\nsnapshotter = %q\ndiffer = %q\n",
			TransferSection, images.HostPlatform(), unpack[0], unpack[1])
	}
	opts.Env = append(opts.Env, "PATH="+filepath.Join(node.BinDir(), "erofs")+":"+node.BinDir()+":"+os.Getenv("PATH"))
	opts.Extra += "[plugins.\"io.containerd.service.v1.diff-service\"]\ndefault = [\"erofs\", \"walking\"]\n" + transfer
	opts.ServeExtra += transfer
	return opts
}

// WithSecond returns the options for a node with the handler [Second] on a snapshotter, see [SecondSnapshotters].
func WithSecond(snapshotter string, opts node.Options) node.Options {
	opts.Handlers = append(opts.Handlers, node.Handler{Name: Second, Snapshotter: snapshotter})
	if snapshotter == EROFS {
		return WithEROFS(opts)
	}
	return opts
}

// SecondSnapshotters are the snapshotters with which the main scenarios run beside overlayfs.
var SecondSnapshotters = []string{"native", EROFS}
