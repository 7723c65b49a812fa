package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/imagepin/imagepin/integration/images"
)

// EROFS is the name of containerd's EROFS snapshotter.
const EROFS = "erofs"

// WithEROFS returns the options for a node with containerd's EROFS snapshotter and its differ, beside overlayfs. The
// differ uses the mkfs.erofs of hack/erofs-utils.sh, with the options of docs/snapshotters.md. Each of settings is another line of the
// differ's configuration.
func WithEROFS(opts Options, settings ...string) Options {
	// Without an entry, stock containerd's transfer service unpacks nothing in a snapshotter.
	transfer := ""
	for _, unpack := range [][2]string{{"overlayfs", ""}, {"native", ""}, {EROFS, EROFS}} {
		transfer += fmt.Sprintf("[[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\nplatform = %q\nsnapshotter = %q\ndiffer = %q\n",
			images.HostPlatform(), unpack[0], unpack[1])
	}
	opts.Env = append(opts.Env, "PATH="+filepath.Join(BinDir(), "erofs")+":"+BinDir()+":"+os.Getenv("PATH"))
	opts.Extra += "[plugins.\"io.containerd.service.v1.diff-service\"]\ndefault = [\"erofs\", \"walking\"]\n" + transfer +
		"[plugins.\"io.containerd.differ.v1.erofs\"]\nmkfs_options = [\"-T0\", \"--mkfs-time\", \"--sort=none\"]\n" + strings.Join(settings, "\n") + "\n"
	opts.ServeExtra += transfer
	return opts
}
