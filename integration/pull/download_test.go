package pull

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// TestUnpackWhileDownloading pulls two images that share a layer, one of them for two snapshotters, while the registry
// stops in the middle of the layer. The layer is unpacked up to there in one snapshotter. It is fetched once, and
// nothing is committed before all of it is there.
func TestUnpackWhileDownloading(t *testing.T) {
	t.Parallel()
	r := testkit.NewRig(t, node.Options{Handlers: testkit.OnNative})
	shared := []images.Random{{Files: 4, Size: 8 << 20, Seed: 7}}
	one := images.Options{Version: "one", Random: shared}
	two := images.Options{Version: "two", Random: shared}
	imgs := map[string]v1.Image{"one": testkit.App(t, one), "two": testkit.App(t, two)}
	first, _ := r.PushImage("app:one", imgs["one"])
	second, _ := r.PushImage("app:two", imgs["two"])
	for _, handler := range []string{"", testkit.Second} {
		r.MustRemovePod(r.MustPod(handler)) // the sandbox image
	}
	hold := make(chan struct{})
	r.Reg.SetFault(registry.FaultIf(registry.Fault{Hang: hold, After: 6 << 20}, registry.Is("GET", registry.Blob)))
	r.Reg.Reset()

	pulls := []struct {
		ref, handler string
		image        images.Options
	}{{first, "", one}, {first, testkit.Second, one}, {second, "", two}}
	failed := make(chan error, len(pulls))
	for _, p := range pulls {
		go func() {
			_, err := r.Pull(r.Ctx, p.ref, p.handler)
			failed <- err
		}()
	}
	r.Eventually("two files of the layer are unpacked", func() bool { return largeFiles(t, r.Node) >= 2 })
	state := r.MustState()
	for name, img := range imgs {
		for _, snapshotter := range []string{"overlayfs", "native"} {
			if _, ok := state.Snapshots[node.Namespace+"/"+snapshotter+"/"+chainID(t, img)]; ok {
				t.Errorf("image %s is ready in %s while its layer is being downloaded", name, snapshotter)
			}
		}
	}
	close(hold)
	for range pulls {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	checkOnce(t, r.Reg)
	for _, p := range pulls {
		pod := r.MustPod(p.handler)
		r.WantLine(pod, node.ContainerOptions{Image: p.ref}, testkit.Line(p.image, images.HostPlatform()))
		r.MustRemovePod(pod)
	}
}

func chainID(t *testing.T, img v1.Image) string {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	var layers []digest.Digest
	for _, d := range config.RootFS.DiffIDs {
		layers = append(layers, digest.Digest(d.String()))
	}
	return identity.ChainID(layers).String()
}

// largeFiles returns the number of files of a megabyte in the snapshots of a node.
func largeFiles(t *testing.T, n *node.Node) int {
	t.Helper()
	files := 0
	for _, snapshotter := range []string{"overlayfs", "native"} {
		dir := n.Path("root", "io.containerd.snapshotter.v1."+snapshotter, "snapshots")
		err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				var info fs.FileInfo
				if info, err = d.Info(); err == nil && info.Size() >= 1<<20 {
					files++
				}
			}
			if errors.Is(err, fs.ErrNotExist) { // removed meanwhile
				return nil
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}
