package pull

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/unpack"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/download"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/retain"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// pullingNode is a node that pulls images from registries for two snapshotters, in both of which layers are unpacked in
// parallel, while they are downloaded.
type pullingNode struct {
	*ctdtest.Node
	*Puller
	ctx      context.Context
	runtimes *runtimeplatform.Set
	locks    *Locks
	unpack   func() error // before each layer is unpacked; may be nil
}

func newPullingNode(t *testing.T, limits Limits) *pullingNode {
	t.Helper()
	names := []string{"first", "second"}
	n := &pullingNode{Node: ctdtest.New(t, names...), locks: &Locks{}}
	n.ctx = n.Context(t)
	var handlers []runtimeplatform.Handler
	var unpackers []unpack.Platform
	for _, name := range names {
		handlers = append(handlers, runtimeplatform.Handler{Name: name, Snapshotter: name})
		unpackers = append(unpackers, unpack.Platform{
			Platform: platforms.All, SnapshotterKey: name, Snapshotter: n.Snapshotter(name), SnapshotterCapabilities: []string{snapshots.RebaseCap},
			Applier: download.NewApplier(n.Content, func(cs content.Provider) diff.Applier { return readingApplier{cs, n} }),
		})
	}
	var err error
	n.runtimes, err = runtimeplatform.New("first", handlers, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	noError(t, err)
	prover, err := resolve.NewProver(make([]byte, 32))
	noError(t, err)
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	noError(t, err)
	s := store.New(store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(n.runtimes),
	})
	pins, resolver := pin.New(pin.Config{}), resolve.New(resolve.Config{Prover: prover, Timeout: time.Minute})
	proofs := decide.NodeProofs{Prover: resolver, Stores: []decide.ProofStore{s, pins}}
	retainer := retain.New(retain.Config{
		Leases: n.Leases, Transactions: ctdtest.Records{Store: n.Images}, Content: n.Content, Pins: pinned{}, Images: s, MaxBytes: ctdtest.Always(int64(0)), Released: func() {},
	})
	decider := decide.New(decide.Config{
		Policy: ctdtest.Always(rules), Pins: pins, Images: s, Proofs: proofs, Registry: resolver, Retained: retainer,
	})
	maker := New(Config{
		Content: n.Content, Leases: n.Leases, Images: s, Pins: decider, Proofs: proofs, Sessions: resolver, Garbage: &fakeGarbage{},
		Retained: retainer, Upstream: syncedUpstream{}, Locks: n.locks, Runtimes: ctdtest.Always(n.runtimes),
		Settings: ctdtest.Always(&Settings{
			UnpackPlatforms: unpackers, Transfer: NewTransfer(n.Content, n.Leases, unpackers, limits, n.locks),
		}),
	})
	n.Puller = NewPuller(decider, maker, unobserved{}, prover.Identity)
	return n
}

// readingApplier reads layers and writes nothing.
type readingApplier struct {
	content.Provider
	node *pullingNode
}

func (a readingApplier) Apply(ctx context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if unpack := a.node.unpack; unpack != nil {
		if err := unpack(); err != nil {
			return ocispec.Descriptor{}, err
		}
	}
	ra, err := a.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer ra.Close()
	d, err := digest.Canonical.FromReader(content.NewReader(ra))
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d}, err
}

// pull pulls a reference for a handler.
func (n *pullingNode) pull(ctx context.Context, ref, handler string) error {
	rt, err := n.runtimes.Lookup(handler)
	if err != nil {
		return err
	}
	_, err = n.Pull(ctx, Request{Ref: ref, Runtime: rt})
	return err
}

// pullSoon pulls a reference, which must not wait for another registry.
func (n *pullingNode) pullSoon(t *testing.T, what, ref, handler string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(n.ctx, enough)
	defer cancel()
	if err := n.pull(ctx, ref, handler); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// imageOf adds an image that has one layer for each text. Equal texts are equal layers.
func imageOf(b ctdtest.Blobs, texts ...string) (manifest ocispec.Descriptor, layers []ocispec.Descriptor) {
	p := platforms.MustParse("linux/amd64")
	rootfs := ocispec.RootFS{Type: "layers"}
	for _, text := range texts {
		layer := b.Image("linux/amd64", text, nil).Layer
		layers = append(layers, layer)
		rootfs.DiffIDs = append(rootfs.DiffIDs, layer.Digest)
	}
	config := b.AddJSON(ocispec.MediaTypeImageConfig, ocispec.Image{Platform: p, RootFS: rootfs, Author: strings.Join(texts, " ")})
	return b.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: layers,
	}), layers
}

// drippingRegistry is a registry that sends the first byte of some blobs, and the rest after release.
type drippingRegistry struct {
	mu      sync.Mutex
	images  map[string]ctdtest.Registry // by repository
	held    map[digest.Digest]bool
	alter   func(repository string, data []byte) []byte // of the blobs that are held; nil sends them as they are
	begun   chan digest.Digest                          // a held blob has been begun
	open    chan struct{}
	release func()
	host    string
}

func newDrippingRegistry(t *testing.T) *drippingRegistry {
	t.Helper()
	r := &drippingRegistry{
		images: make(map[string]ctdtest.Registry), held: make(map[digest.Digest]bool), begun: make(chan digest.Digest, 100), open: make(chan struct{}),
	}
	r.release = sync.OnceFunc(func() { close(r.open) })
	s := httptest.NewServer(r)
	r.host = strings.TrimPrefix(s.URL, "http://")
	t.Cleanup(func() {
		r.release()
		s.Close()
	})
	return r
}

// serve serves an image as every tag of a repository, and returns a reference. It holds the given blobs.
func (r *drippingRegistry) serve(repository string, blobs ctdtest.Blobs, root ocispec.Descriptor, held ...ocispec.Descriptor) (ref string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.images[repository] = ctdtest.Registry{Blobs: blobs, Root: root}
	for _, desc := range held {
		r.held[desc.Digest] = true
	}
	return r.host + "/" + repository + ":v1"
}

// ServeHTTP implements http.Handler.
func (r *drippingRegistry) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := strings.Split(strings.TrimPrefix(q.URL.Path, "/v2/"), "/")
	repository, d := strings.Join(path[:max(len(path)-2, 0)], "/"), digest.Digest(path[len(path)-1])
	r.mu.Lock()
	img, held, alter := r.images[repository], r.held[d] && q.Method == http.MethodGet, r.alter
	r.mu.Unlock()
	if !held {
		img.ServeHTTP(w, q)
		return
	}
	data := img.Blobs[d]
	if alter != nil {
		data = alter(repository, data)
	}
	w.Header().Set("Content-Length", fmt.Sprint(len(img.Blobs[d])))
	_, _ = w.Write(data[:1])
	_ = http.NewResponseController(w).Flush()
	r.begun <- d
	select {
	case <-r.open:
		_, _ = w.Write(data[1:]) // the server closes the connection if that is not all
	case <-q.Context().Done():
	}
}

// TestSlowRegistryHoldsNothingOfOthers pulls an image from a registry that begins to send its layers and does not go on,
// with as many layers as may be downloaded and unpacked. Meanwhile other registries' images are pulled, also one that
// has a layer of that image, and one that is on the node is unpacked for another snapshotter. Then the registry goes on,
// and its pull succeeds.
func TestSlowRegistryHoldsNothingOfOthers(t *testing.T) {
	n := newPullingNode(t, Limits{Downloads: 2, Unpacks: 2})
	slow, honest, blobs := newDrippingRegistry(t), newDrippingRegistry(t), ctdtest.Blobs{}
	app, _ := imageOf(blobs, "app")
	other, _ := imageOf(blobs, "base", "other")
	tenant, layers := imageOf(blobs, "base", "one", "two", "three")
	known := honest.serve("team/app", blobs, app)
	noError(t, n.pull(n.ctx, known, "first"))

	ref := slow.serve("tenant/app", blobs, tenant, layers...)
	ended := make(chan error, 1)
	go func() { ended <- n.pull(n.ctx, ref, "first") }()
	for range 2 {
		<-slow.begun
	}
	n.pullSoon(t, "an image on the node for another snapshotter", known, "second")
	n.pullSoon(t, "an image of another registry", honest.serve("team/new", blobs, other), "first")
	select {
	case err := <-ended:
		t.Errorf("the slow pull has ended: %v", err)
	default:
	}
	slow.release()
	if err := <-ended; err != nil {
		t.Errorf("the slow pull failed: %v", err)
	}
	if last := identity.ChainID([]digest.Digest{layers[0].Digest, layers[1].Digest, layers[2].Digest, layers[3].Digest}); !n.HasSnapshot(t, "first", last) {
		t.Error("the slow image is not unpacked")
	}
}

// TestEqualLayersOfOneRegistry pulls two images of one registry that share a layer at the same time. The layer is fetched
// once.
func TestEqualLayersOfOneRegistry(t *testing.T) {
	n := newPullingNode(t, Limits{Downloads: 2, Unpacks: 2})
	r, blobs := newDrippingRegistry(t), ctdtest.Blobs{}
	one, layers := imageOf(blobs, "base")
	two, _ := imageOf(blobs, "base", "more")
	refs := []string{r.serve("team/one", blobs, one, layers...), r.serve("team/two", blobs, two)}
	ended := make(chan error, len(refs))
	go func() { ended <- n.pull(n.ctx, refs[0], "first") }()
	<-r.begun
	go func() { ended <- n.pull(n.ctx, refs[1], "first") }()
	r.release()
	for range refs {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if len(r.begun) != 0 {
		t.Error("the layer was fetched twice")
	}
}

// TestWrongBytesFailOnlyTheirRepository pulls a layer from two repositories, of different registries or of one. The first
// one sends wrong bytes, and either all or half of them. Its pull fails, the other one succeeds, and nothing wrong is left.
func TestWrongBytesFailOnlyTheirRepository(t *testing.T) {
	for _, registries := range []string{"two registries", "one registry"} {
		for _, sent := range []string{"all", "half"} {
			t.Run(registries+", "+sent, func(t *testing.T) {
				n := newPullingNode(t, Limits{Unpacks: 2})
				bad, blobs := newDrippingRegistry(t), ctdtest.Blobs{}
				good := bad
				if registries == "two registries" {
					good = newDrippingRegistry(t)
					good.release()
				}
				app, layers := imageOf(blobs, "app")
				tenant, _ := imageOf(blobs, "app", "of a tenant")
				bad.alter = func(repository string, data []byte) []byte {
					if repository != "tenant/app" {
						return data
					}
					wrong := make([]byte, len(data))
					if sent == "half" {
						return wrong[:len(wrong)/2]
					}
					return wrong
				}
				theirs := bad.serve("tenant/app", blobs, tenant, layers[0])
				ours := good.serve("team/app", blobs, app, layers[0])
				ended, pulled := make(chan error, 1), make(chan error, 1)
				go func() { ended <- n.pull(n.ctx, theirs, "first") }()
				<-bad.begun
				go func() { pulled <- n.pull(n.ctx, ours, "first") }()
				bad.release()
				if err := <-ended; err == nil {
					t.Error("a pull of wrong bytes succeeded")
				}
				if err := <-pulled; err != nil {
					t.Errorf("a pull of the right bytes: %v", err)
				}
				writes, err := n.Content.ListStatuses(n.ctx)
				noError(t, err)
				if sent == "all" && len(writes) > 0 {
					t.Errorf("writes are left: %+v", writes)
				}
			})
		}
	}
}

// TestRepositoryIsRepaired pulls a layer of which the repository has sent wrong bytes before: the beginning, or all.
// It sends the right ones now. The node does not have to wait for the garbage collection of what it has.
func TestRepositoryIsRepaired(t *testing.T) {
	for name, wrong := range map[string]func(size int) int{
		"beginning": func(size int) int { return size / 2 },
		"all":       func(size int) int { return size },
	} {
		t.Run(name, func(t *testing.T) {
			n := newPullingNode(t, Limits{Unpacks: 2})
			r, blobs := newDrippingRegistry(t), ctdtest.Blobs{}
			app, layers := imageOf(blobs, "app")
			ref := r.serve("team/app", blobs, app)
			cs := ingests{Store: n.Content, repository: r.host + "/team/app", origin: onlyHost(r.host + "/v2")}
			ctx, done := n.Lease(t)
			defer done()
			w, err := cs.Store.Writer(ctx, content.WithRef(cs.ref(r.host+"/v2", "layer-"+layers[0].Digest.String())), content.WithDescriptor(layers[0]))
			noError(t, err)
			_, err = w.Write(make([]byte, wrong(int(layers[0].Size))))
			noError(t, err)
			noError(t, w.Close())
			noError(t, n.pull(n.ctx, ref, "first"))
			writes, err := n.Content.ListStatuses(n.ctx)
			noError(t, err)
			if len(writes) > 0 {
				t.Errorf("writes are left: %+v", writes)
			}
		})
	}
}

// TestIngestsOfARepository checks that a repository sees its own unfinished writes only, and by their names.
func TestIngestsOfARepository(t *testing.T) {
	n := ctdtest.New(t)
	ctx, done := n.Lease(t)
	defer done()
	desc := ocispec.Descriptor{Digest: digest.FromString("abc"), Size: 3}
	for i, repository := range []string{"a.example/app", "b.example/app"} {
		w, err := (ingests{Store: n.Content, repository: repository}).Writer(ctx, content.WithRef("layer"), content.WithDescriptor(desc))
		noError(t, err)
		if status, err := w.Status(); err != nil || status.Offset != 0 || status.Ref != "layer" {
			t.Errorf("%s begins with %+v, %v", repository, status, err)
		}
		_, err = w.Write(make([]byte, i+1))
		noError(t, err)
		noError(t, w.Close())
	}
	cs := ingests{Store: n.Content, repository: "b.example/app"}
	all, err := cs.ListStatuses(ctx)
	noError(t, err)
	if len(all) != 1 || all[0].Ref != "layer" || all[0].Offset != 2 {
		t.Errorf("got writes %+v, want one with 2 bytes", all)
	}
	if status, err := cs.Status(ctx, "layer"); err != nil || status.Offset != 2 || status.Ref != "layer" {
		t.Errorf("got status %+v, %v", status, err)
	}
	w, err := cs.Writer(ctx, content.WithRef("layer"), content.WithDescriptor(desc))
	noError(t, err)
	_, err = w.Write([]byte("more than the blob"))
	noError(t, err)
	noError(t, w.Close())
	if all, err = n.Content.ListStatuses(ctx); err != nil || len(all) != 1 {
		t.Errorf("got writes %+v, %v, want that of the other repository", all, err)
	}
}

// TestWriteWithoutByte closes a writer before it has got a byte, as the writers of a pull that fails elsewhere. Nothing is left.
func TestWriteWithoutByte(t *testing.T) {
	n := newPullingNode(t, Limits{Unpacks: 1})
	ctx, done := n.Lease(t)
	defer done()
	_, layers := imageOf(ctdtest.Blobs{}, "app")
	w, err := ingests{Store: n.Content, repository: "registry.example/app"}.Writer(ctx, content.WithRef("layer"), content.WithDescriptor(layers[0]))
	noError(t, err)
	noError(t, w.Close())
	if writes, err := n.Content.ListStatuses(ctx); err != nil || len(writes) > 0 {
		t.Errorf("got writes %+v, %v, want none", writes, err)
	}
}

// TestRemovalDoesNotWaitForRegistry locks an image for its removal while a registry sends the digest that its tag has
// now, and while it sends the image for another target.
func TestRemovalDoesNotWaitForRegistry(t *testing.T) {
	n := newPullingNode(t, Limits{Unpacks: 2})
	r, blobs := newDrippingRegistry(t), ctdtest.Blobs{}
	before, _ := imageOf(blobs, "before")
	after, layers := imageOf(blobs, "after")
	ref := r.serve("team/app", blobs, before)
	noError(t, n.pull(n.ctx, ref, "first"))
	r.serve("team/app", blobs, after, layers...)
	ended := make(chan error, 1)
	go func() { ended <- n.pull(n.ctx, ref, "first") }()
	<-r.begun
	ctx, cancel := context.WithTimeout(n.ctx, enough)
	defer cancel()
	repository := r.host + "/team/app@"
	unlock, err := n.locks.ForRemoval(ctx, ref, repository+before.Digest.String(), repository+after.Digest.String())
	if err != nil {
		t.Fatalf("the removal waits for the pull: %v", err)
	}
	r.release()
	for !n.HasSnapshot(t, "first", layers[0].Digest) {
		time.Sleep(time.Millisecond) // until the pull has unpacked the image and waits for the removal
	}
	select {
	case err := <-ended:
		t.Errorf("the pull recorded the image during its removal: %v", err)
	default:
	}
	unlock()
	noError(t, <-ended)
}

// TestRefreshDoesNotHoldTheTag locks an image for its removal while a refresh pulls the digest that its tag has now.
func TestRefreshDoesNotHoldTheTag(t *testing.T) {
	n := newPullingNode(t, Limits{Unpacks: 2})
	r, blobs := newDrippingRegistry(t), ctdtest.Blobs{}
	before, _ := imageOf(blobs, "before")
	after, layers := imageOf(blobs, "after")
	ref := r.serve("team/app", blobs, before)
	noError(t, n.pull(n.ctx, ref, "first"))
	r.serve("team/app", blobs, after, layers...)
	ended := make(chan error, 1)
	go func() {
		done, err := n.Refresh(n.ctx, ref, "", resolve.Credential{})
		ended <- errors.Join(err, done.Failed())
	}()
	<-r.begun
	ctx, cancel := context.WithTimeout(n.ctx, enough)
	defer cancel()
	unlock, err := n.locks.ForRemoval(ctx, ref, r.host+"/team/app@"+before.Digest.String())
	if err != nil {
		t.Fatalf("the removal waits for the refresh: %v", err)
	}
	unlock()
	r.release()
	noError(t, <-ended)
}
