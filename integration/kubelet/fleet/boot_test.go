package fleet

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
)

const dropDirectories = `
[plugins."io.containerd.imagepin.v1.images"]
locked = "strict"
locks_directory = "{root}/locks.d"
bundles_directory = "{root}/bundles"
`

// TestBoot boots a node for the first time, without a registry. A bundle is in the drop directory, and no other image may run. kubelet starts as soon as the
// CRI answers, while the bundle is applied. A static pod and the pods of a Deployment start.
func TestBoot(t *testing.T) {
	t.Parallel()
	for _, mode := range []node.Mode{node.Plugin, node.Serve} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, "boot-"+string(mode), node.Options{Mode: mode, Extra: dropDirectories})
			web, static := r.push("shop/web:v1", "web"), r.push("shop/static:v1", "static")
			dir := r.Path("manifests")
			for _, path := range []string{dir, r.Path("bundles")} {
				if err := os.Mkdir(path, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			for _, name := range []string{"web.yaml", "static.yaml"} {
				if err := os.Rename(r.manifest(name), filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			r.bundle("bundles/1.tar.zst", r.lock("lock.yaml", dir))
			r.kubectl("apply", "-f", filepath.Join(dir, "web.yaml"))
			if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
				t.Fatal(err)
			}
			r.Reg.Down()
			r.startNode()
			r.startKubelet(map[string]any{"staticPodPath": dir})
			r.running("web", 2, web)
			pod := r.running("static", 1, static)[0]
			pod.UID = types.UID(pod.Annotations["kubernetes.io/config.hash"]) // the mirror of a static pod has another one
			r.wantLine(pod, "c", images.Options{Version: "static"}.Line(0))
			r.imagepin(0, []string{"lock", "status"}, "from 1.tar.zst", "0 missing")
		})
	}
}
