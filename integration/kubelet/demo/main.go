// Command demo shows what ImagePins do: a tag moves in the middle of a rollout over three nodes. Without imagepin, the pods
// run two builds. With it, they run one, also after the rollout is undone.
//
// It runs etcd, an API server, a controller manager, a scheduler and three nodes, each with a kubelet and a containerd, on
// the loopback interface, and downloads nothing. When it ends, also by Ctrl-C, it removes everything. It checks what it
// prints, and the exit code is 0 only if everything is as expected.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/imagepin/imagepin/integration/kubelet/cluster"
	"github.com/imagepin/imagepin/integration/script"
)

// timeout ends a demo that hangs.
const timeout = 5 * time.Minute

func main() {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "demo: kubelet needs root")
		os.Exit(1)
	}
	os.Exit(cluster.InNamespace(func() int {
		err := script.Run(timeout, func(ctx context.Context, out io.Writer) error {
			return (&demo{out: out, began: time.Now()}).run(ctx)
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, "demo:", err)
			return 1
		}
		return 0
	}))
}
