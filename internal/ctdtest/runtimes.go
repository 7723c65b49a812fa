package ctdtest

import (
	"testing"

	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Runtimes returns the runtime handlers of a linux/amd64 node: "runc", which is the default, with a snapshotter, and others.
func Runtimes(t testing.TB, snapshotter string, others ...runtimeplatform.Handler) *runtimeplatform.Set {
	t.Helper()
	all := append([]runtimeplatform.Handler{{Name: "runc", Snapshotter: snapshotter}}, others...)
	set, err := runtimeplatform.New("runc", all, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	noError(t, err)
	return set
}
