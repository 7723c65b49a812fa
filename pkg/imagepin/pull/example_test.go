package pull_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// This example pulls a tag for two handlers with different snapshotters. The second pull fetches nothing.
func ExamplePuller_Pull() {
	t, end := ctdtest.Example()
	defer end()
	blobs := ctdtest.Blobs{}
	index := blobs.Index(blobs.Image("linux/amd64", "cart", nil).Manifest)
	registry := httptest.NewServer(ctdtest.Registry{Blobs: blobs, Root: index})
	defer registry.Close()

	node := ctdtest.New(t, "native", "other")
	handlers := ctdtest.Runtimes(t, "native", runtimeplatform.Handler{Name: "kata", Snapshotter: "other"})
	puller, err := newPuller(node, handlers)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"runc", "kata", "runc"} {
		runtime, err := handlers.Lookup(name)
		if err != nil {
			fmt.Println(err)
			return
		}
		ref := strings.TrimPrefix(registry.URL, "http://") + "/shop/cart:v7"
		pulled, err := puller.Pull(node.Context(t), pull.Request{Ref: ref, Runtime: runtime})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s %s\n", name, pulled.Outcome, pulled.Target)
	}
	// Output:
	// runc: fetched linux/amd64 on native
	// kata: unpacked linux/amd64 on other
	// runc: up_to_date linux/amd64 on native
}

// newPuller connects the parts of a node, as package node does in containerd.
func newPuller(n *ctdtest.Node, handlers *runtimeplatform.Set) (*pull.Puller, error) {
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	if err != nil {
		return nil, err
	}
	prover, err := resolve.NewProver(make([]byte, 32)) // a secret of the node
	if err != nil {
		return nil, err
	}
	runtimes, records, locks := ctdtest.Always(handlers), ctdtest.Records{Store: n.Images}, &pull.Locks{}
	resolver := resolve.New(resolve.Config{Prover: prover, Timeout: time.Minute})
	pins := pin.New(pin.Config{Images: n.Images})
	ready := store.New(store.Config{
		Records: records, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: runtimes,
	})
	retained := retain.New(retain.Config{
		Leases: n.Leases, Transactions: records, Content: n.Content, Pins: pins, Images: ready, MaxBytes: ctdtest.Always[int64](0), Released: func() {},
	})
	proofs := decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{ready, pins}}
	decider := decide.New(decide.Config{
		Policy: ctdtest.Always(rules), Pins: pins, Images: ready, Proofs: proofs, Registry: resolver, Retained: retained,
	})
	var unpackers []unpack.Platform
	for _, name := range handlers.Snapshotters() {
		unpackers = append(unpackers, unpack.Platform{
			Platform: platforms.All, SnapshotterKey: name, Snapshotter: n.Snapshotter(name), Applier: untar{n.Content},
		})
	}
	maker := pull.New(pull.Config{
		Content: n.Content, Leases: n.Leases, Images: ready, Pins: decider, Proofs: proofs, Sessions: resolver, Retained: retained,
		Upstream: noUpstream{}, Garbage: garbage{ready}, Locks: locks, Runtimes: runtimes, Settings: ctdtest.Always(&pull.Settings{
			UnpackPlatforms: unpackers, Transfer: pull.NewTransfer(n.Content, n.Leases, unpackers, pull.Limits{}, locks),
		}),
	})
	return pull.NewPuller(decider, maker, noObserver{}, prover.Identity), nil
}

// untar unpacks uncompressed layers without mounts.
type untar struct{ content content.Store }

func (u untar) Apply(ctx context.Context, layer ocispec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	ra, err := u.content.ReaderAt(ctx, layer)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer ra.Close()
	_, err = archive.Apply(ctx, mounts[0].Source, content.NewReader(ra))
	return layer, err
}

// noUpstream is an upstream that has every image.
type noUpstream struct{}

func (noUpstream) WaitVisible(context.Context, digest.Digest, []string, func(string) bool) error {
	return nil
}

type garbage struct{ *store.Store }

func (garbage) CollectAsync() {}

// noObserver ignores pulls.
type noObserver struct{}

func (noObserver) Pulled(pull.Outcome) {}
func (noObserver) FallbackUsed()       {}
func (noObserver) RepairFailed()       {}
