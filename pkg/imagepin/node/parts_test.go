package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
)

// TestMissingParts refuses to run without a part whose section is set, or whose lock is applied, and names the plugin.
func TestMissingParts(t *testing.T) {
	c := ctdtest.New(t)
	n := &Node{containerd: Containerd{Pins: c.Images}}
	want := func(what, key string, err error) {
		t.Helper()
		var of *config.KeyError
		if err == nil || !strings.Contains(err.Error(), "disabled_plugins") || key != "" && (!errors.As(err, &of) || of.Key != key) {
			t.Errorf("%s: got %v, want an error for %q", what, err, key)
		}
	}
	if err := n.checkFleet(t.Context(), config.Settings{}); err != nil {
		t.Errorf("without a lock: %v", err)
	}
	want("locks", "locks_directory", n.checkFleet(t.Context(), config.Settings{LocksDirectory: "/srv/locks"}))
	want("bundles", "bundles_directory", n.checkFleet(t.Context(), config.Settings{BundlesDirectory: "/srv/bundles"}))
	lock := ctdtest.Blobs{}.Add("application/json", []byte("a lock"))
	if _, err := c.Images.Create(c.InNamespace(t, pin.Namespace), images.Image{Name: pin.LockRecord, Target: ocispec.Descriptor{MediaType: lock.MediaType, Digest: lock.Digest, Size: lock.Size}}); err != nil {
		t.Fatal(err)
	}
	err := n.checkFleet(t.Context(), config.Settings{})
	if want("an applied lock", "", err); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("got %v, want ErrFailedPrecondition", err)
	}
	_, err = n.clusterOf(config.Cluster{Kubeconfig: "/etc/kubernetes/kubelet.conf"})
	want("a cluster", "cluster.kubeconfig", err)
	if c, err := n.clusterOf(config.Cluster{}); c != nil || err != nil {
		t.Errorf("without a cluster: got %v, %v", c, err)
	}
}
