package node

import (
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// TestLockWithoutPart refuses to run a node on which a lock is applied without the part for locks, and names the plugin.
func TestLockWithoutPart(t *testing.T) {
	c := ctdtest.New(t)
	n := &Node{containerd: Containerd{Pins: c.Images}}
	if err := n.checkLock(t.Context()); err != nil {
		t.Errorf("without a lock: %v", err)
	}
	lock := ctdtest.Blobs{}.Add("application/json", []byte("a lock"))
	record := images.Image{Name: pin.LockRecord, Target: ocispec.Descriptor{MediaType: lock.MediaType, Digest: lock.Digest, Size: lock.Size}}
	if _, err := c.Images.Create(c.InNamespace(t, pin.Namespace), record); err != nil {
		t.Fatal(err)
	}
	if err := n.checkLock(t.Context()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "io.containerd.imagepin.part.v1.fleet") {
		t.Errorf("an applied lock: got %v, want ErrFailedPrecondition with the plugin", err)
	}
	if c, err := n.clusterOf(config.Cluster{}); c != nil || err != nil {
		t.Errorf("without a cluster: got %v, %v", c, err)
	}
}
