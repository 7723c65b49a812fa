package pull_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/native"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

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
	if err := pullTwice(); err != nil {
		fmt.Println(err)
	}
	// Output:
	// runc: fetched linux/amd64 on native
	// kata: unpacked linux/amd64 on other
	// runc: up_to_date linux/amd64 on native
}

func pullTwice() (err error) {
	dir, err := os.MkdirTemp("", "imagepin-example-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := containerd(dir)
	if err != nil {
		return err
	}
	defer db.Close()
	registry := httptest.NewServer(newRegistry())
	defer registry.Close()

	handlers, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "native"}, {Name: "kata", Snapshotter: "other"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		return err
	}
	puller, err := newPuller(db, handlers)
	if err != nil {
		return err
	}
	ctx := namespaces.WithNamespace(context.Background(), "k8s.io")
	for _, name := range []string{"runc", "kata", "runc"} {
		runtime, err := handlers.Lookup(name)
		if err != nil {
			return err
		}
		ref := strings.TrimPrefix(registry.URL, "http://") + "/shop/cart:v7"
		pulled, err := puller.Pull(ctx, pull.Request{Ref: ref, Runtime: runtime})
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s %s\n", name, pulled.Outcome, pulled.Target)
	}
	return nil
}

// newPuller connects the parts of a node, as package node does in containerd.
func newPuller(db *metadata.DB, handlers *runtimeplatform.Set) (*pull.Puller, error) {
	runtimes := func() *runtimeplatform.Set { return handlers }
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	if err != nil {
		return nil, err
	}
	prover, err := resolve.NewProver(make([]byte, 32)) // a secret of the node
	if err != nil {
		return nil, err
	}
	leases, locks := metadata.NewLeaseManager(db), &pull.Locks{}
	resolver := resolve.New(resolve.Config{Prover: prover, Timeout: time.Minute})
	pins := pin.New(pin.Config{Images: metadata.NewImageStore(db)})
	ready := store.New(store.Config{
		Records: records{metadata.NewImageStore(db)}, Content: db.ContentStore(), Leases: leases, Snapshotter: db.Snapshotter, Runtimes: runtimes,
	})
	retained := retain.New(retain.Config{
		Leases: leases, Transactions: records{metadata.NewImageStore(db)}, Content: db.ContentStore(), Pins: pins, Images: ready, MaxBytes: func() int64 { return 0 }, Released: func() {},
	})
	proofs := decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{ready, pins}}
	decider := decide.New(decide.Config{
		Policy: func() *policy.Policy { return rules }, Pins: pins, Images: ready, Proofs: proofs, Registry: resolver, Retained: retained,
	})
	var unpackers []unpack.Platform
	for _, name := range handlers.Snapshotters() {
		unpackers = append(unpackers, unpack.Platform{
			Platform: platforms.All, SnapshotterKey: name, Snapshotter: db.Snapshotter(name), Applier: untar{db.ContentStore()},
		})
	}
	settings := &pull.Settings{
		UnpackPlatforms: unpackers,
		Transfer:        pull.NewTransfer(db.ContentStore(), leases, unpackers, pull.Limits{}, locks),
	}
	maker := pull.New(pull.Config{
		Content: db.ContentStore(), Leases: leases, Images: ready, Pins: decider, Proofs: proofs, Sessions: resolver, Retained: retained,
		Upstream: noUpstream{}, Garbage: garbage{ready}, Locks: locks, Settings: func() *pull.Settings { return settings }, Runtimes: runtimes,
	})
	return pull.NewPuller(decider, maker, noObserver{}, prover.Identity), nil
}

// containerd opens a metadata database of containerd with a content store and two snapshotters.
func containerd(dir string) (*metadata.DB, error) {
	blobs, err := local.NewStore(filepath.Join(dir, "content"))
	if err != nil {
		return nil, err
	}
	snapshotters := make(map[string]snapshots.Snapshotter)
	for _, name := range []string{"native", "other"} {
		if snapshotters[name], err = native.NewSnapshotter(filepath.Join(dir, name)); err != nil {
			return nil, err
		}
	}
	bdb, err := bolt.Open(filepath.Join(dir, "meta.db"), 0o600, nil)
	if err != nil {
		return nil, err
	}
	db := metadata.NewDB(bdb, blobs, snapshotters)
	return db, db.Init(context.Background())
}

// records is an image store without transactions.
type records struct{ images.Store }

func (r records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r.Store)
}

// untar unpacks layers without mounts.
type untar struct{ content content.Store }

func (u untar) Apply(ctx context.Context, layer ocispec.Descriptor, mounts []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	ra, err := u.content.ReaderAt(ctx, layer)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer ra.Close()
	stream, err := compression.DecompressStream(content.NewReader(ra))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer stream.Close()
	hash := digest.Canonical.Digester()
	read := io.TeeReader(stream, hash.Hash())
	if _, err := archive.Apply(ctx, mounts[0].Source, read); err != nil {
		return ocispec.Descriptor{}, err
	}
	if _, err := io.Copy(io.Discard, read); err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: hash.Digest()}, nil
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

// newRegistry returns a registry in which every tag has the same image.
func newRegistry() http.Handler {
	blobs := ctdtest.Blobs{}
	index := blobs.Index(blobs.Image("linux/amd64", "cart", nil).Manifest)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := digest.Digest(r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		if name.Validate() != nil {
			name = index.Digest
		}
		data, ok := blobs[name]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if name == index.Digest {
			w.Header().Set("Content-Type", index.MediaType)
		}
		w.Header().Set("Docker-Content-Digest", name.String())
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if r.Method == http.MethodGet {
			_, _ = w.Write(data)
		}
	})
}
