package pull

import (
	"context"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// makerNode is a node with a Maker that has no registry. Its upstream has every image, and every proof is accepted.
type makerNode struct {
	*ctdtest.Node
	store     *store.Store
	retainer  *retain.Retainer
	recording *beforeRecording
	maker     *Maker
}

// newMakerNode returns a node on which up to limit bytes may be retained for pins.
func newMakerNode(t *testing.T, pins retain.Pins, limit int64) *makerNode {
	t.Helper()
	n := &makerNode{Node: ctdtest.New(t, "native")}
	runtimes := ctdtest.Always(ctdtest.Runtimes(t, "native"))
	n.recording = &beforeRecording{Manager: n.Leases}
	n.store = store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.recording, Snapshotter: n.Snapshotter, Runtimes: runtimes,
	})
	n.retainer = retain.New(retain.Config{
		Leases: n.Leases, Transactions: ctdtest.Records{Store: n.Images}, Content: n.Content, Pins: pins, Images: n.store, MaxBytes: ctdtest.Always(limit), Released: func() {},
	})
	locks := &Locks{}
	unpackers := []unpack.Platform{{Platform: platforms.All, SnapshotterKey: "native", Snapshotter: n.Snapshotter("native"), Applier: noApplier{}}}
	n.maker = New(Config{
		Content: n.Content, Leases: n.Leases, Images: n.store, Runtimes: runtimes, Retained: n.retainer, Locks: locks,
		Pins:    decide.New(decide.Config{Pins: pin.New(pin.Config{}), Images: n.store, Retained: n.retainer}),
		Garbage: &fakeGarbage{}, Upstream: syncedUpstream{}, Proofs: anyCredential{},
		Settings: ctdtest.Always(&Settings{
			UnpackPlatforms: unpackers, Transfer: NewTransfer(n.Content, n.Leases, unpackers, Limits{Unpacks: 1}, locks),
		}),
	})
	return n
}

// beforeRecording calls before once, before the content of a job's image is leased to be recorded: then the store lists what the
// lease holds.
type beforeRecording struct {
	leases.Manager
	before func()
}

func (b *beforeRecording) ListResources(ctx context.Context, l leases.Lease) ([]leases.Resource, error) {
	if before := b.before; before != nil {
		b.before = nil
		before()
	}
	return b.Manager.ListResources(ctx, l)
}

// syncedUpstream knows every image.
type syncedUpstream struct{}

func (syncedUpstream) WaitVisible(context.Context, digest.Digest, []string, func(string) bool) error {
	return nil
}

// anyCredential accepts every credential for every image.
type anyCredential struct{}

func (anyCredential) Of(reference.Named, resolve.Credential, digest.Digest) string { return "" }

func (anyCredential) Accepted(reference.Named, resolve.Credential, digest.Digest) (string, bool) {
	return "", true
}
