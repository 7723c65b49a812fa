package pull

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// answers is a registry that says what a tag means, and has every digest that it has ever had.
type answers struct {
	*httptest.Server
	status atomic.Int32 // instead of what it has
	tag    atomic.Value // ocispec.Descriptor
	asked  atomic.Int64 // how often
	has    []ocispec.Descriptor
}

func newAnswers(t *testing.T, has ...ocispec.Descriptor) *answers {
	a := &answers{has: has}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked.Add(1)
	if status := int(a.status.Load()); status != 0 {
		w.WriteHeader(status)
		return
	}
	root := a.tag.Load().(ocispec.Descriptor)
	for _, d := range a.has {
		if strings.HasSuffix(r.URL.Path, d.Digest.String()) {
			root = d
		}
	}
	w.Header().Set("Content-Type", root.MediaType)
	w.Header().Set("Docker-Content-Digest", root.Digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(root.Size))
}

// plainRecords are image records that change one by one.
type plainRecords struct{ images.Store }

func (r plainRecords) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return fn(ctx, r)
}

type boltNamespaces struct{ db *metadata.DB }

func (s boltNamespaces) Create(ctx context.Context, name string, labels map[string]string) error {
	return s.db.Update(func(tx *bolt.Tx) error { return metadata.NewNamespaceStore(tx).Create(ctx, name, labels) })
}

// deciding is a node with two targets of one platform, and a registry.
type deciding struct {
	*Puller
	node     *ctdtest.Node
	registry *answers
	ref      reference.Named
	own      runtimeplatform.Target
	other    runtimeplatform.Target
	roots    map[string]ocispec.Descriptor // by version
	images   map[string]ctdtest.Image
}

func newDeciding(t *testing.T) *deciding {
	t.Helper()
	d := &deciding{node: ctdtest.New(t, "own", "other"), roots: make(map[string]ocispec.Descriptor), images: make(map[string]ctdtest.Image)}
	ctx, done := d.node.Lease(t)
	t.Cleanup(done)
	blobs := ctdtest.Blobs{}
	for _, version := range []string{"old", "new"} {
		img := blobs.Image("linux/amd64", version, nil)
		d.images[version], d.roots[version] = img, img.Manifest
	}
	d.node.Write(ctx, t, blobs)
	for _, img := range d.images {
		d.node.Keep(ctx, t, img, nil)
		d.node.Unpack(ctx, t, img, "own")
		d.node.Unpack(ctx, t, img, "other")
	}
	runtimes, err := runtimeplatform.New("own", []runtimeplatform.Handler{{Name: "own", Snapshotter: "own"}, {Name: "other", Snapshotter: "other"}},
		runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		t.Fatal(err)
	}
	prover, err := resolve.NewProver(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	rules, err := policy.New(policy.Rule{Behavior: policy.Default, Consistency: policy.Off}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	pins := pin.New(pin.Config{Images: d.node.Images, Namespaces: boltNamespaces{d.node.DB}})
	if err := pins.Load(d.node.Context(t)); err != nil {
		t.Fatal(err)
	}
	d.Puller = New(Config{
		Content: d.node.Content, Leases: d.node.Leases, Runtimes: runtimes, Policy: rules, Pins: pins,
		Retainer: &pin.Retainer{Leases: d.node.Leases, Content: d.node.Content},
		Resolver: resolve.New(resolve.Config{Timeout: time.Minute, Prover: prover}),
		Store: store.New(store.Config{
			Records: plainRecords{d.node.Images}, Content: d.node.Content, Leases: d.node.Leases,
			Snapshotter: d.node.Snapshotter, Runtimes: runtimes,
		}),
	})
	d.registry = newAnswers(t, d.roots["old"], d.roots["new"])
	d.ref = named(t, strings.TrimPrefix(d.registry.URL, "http://")+"/team/app:1")
	for name, target := range map[string]*runtimeplatform.Target{"own": &d.own, "other": &d.other} {
		rt, err := runtimes.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		*target = rt.Target
	}
	return d
}

// put makes a version of the tag ready for a target.
func (d *deciding) put(t *testing.T, version string, target runtimeplatform.Target, source imagepin.Source, by *resolve.Credential, at int) {
	t.Helper()
	ctx, done := d.node.Lease(t)
	defer done()
	root, img := d.roots[version], d.images[version]
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: d.ref.String(), Target: target}, Root: plainDescriptor(root), Manifest: img.Manifest.Digest, ImageID: img.Config.Digest,
		ChainID: img.ChainID, Size: 1, ReadyAt: time.Unix(1_700_000_000+int64(at), 0), Source: source, RecordTarget: plainDescriptor(root),
	}
	var err error
	if e.Record, err = store.RecordName(d.ref, root.Digest); err != nil {
		t.Fatal(err)
	}
	proof := ""
	if by != nil {
		proof = d.Resolver.Proof(d.ref, *by, root.Digest)
	}
	byDigest := e
	byDigest.Ref = e.Record
	if _, err := d.Store.Put(ctx, proof, byDigest, e); err != nil {
		t.Fatal(err)
	}
}

func plainDescriptor(d ocispec.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
}

// localStates are the states of the node.
var localStates = map[string]func(t *testing.T, d *deciding){
	"absent": func(*testing.T, *deciding) {},
	"own":    func(t *testing.T, d *deciding) { d.put(t, "old", d.own, imagepin.SourcePull, &resolve.Credential{}, 1) },
	"other": func(t *testing.T, d *deciding) {
		d.put(t, "old", d.other, imagepin.SourcePull, &resolve.Credential{}, 1)
	},
	"split": func(t *testing.T, d *deciding) {
		d.put(t, "old", d.own, imagepin.SourcePull, &resolve.Credential{}, 1)
		d.put(t, "new", d.other, imagepin.SourcePull, &resolve.Credential{}, 2)
	},
	"adopted beside": func(t *testing.T, d *deciding) {
		d.put(t, "old", d.own, imagepin.SourceImported, nil, 1)
		d.put(t, "new", d.other, imagepin.SourcePull, &resolve.Credential{}, 2)
	},
	"adopted":  func(t *testing.T, d *deciding) { d.put(t, "old", d.own, imagepin.SourceAdopted, nil, 1) },
	"imported": func(t *testing.T, d *deciding) { d.put(t, "old", d.own, imagepin.SourceImported, nil, 1) },
	"unproved": func(t *testing.T, d *deciding) {
		d.put(t, "old", d.own, imagepin.SourcePull, &resolve.Credential{Username: "alice", Password: "secret"}, 1)
	},
}

// registryStates are what a registry says, in the order of the tables.
var registryStates = []struct {
	name, tag string
	status    int
}{{"same", "old", 0}, {"moved", "new", 0}, {"404", "old", 404}, {"401", "old", 401}, {"503", "old", 503}}

// A cell is the version that a verdict gives, with "!" where nobody is asked, or the registry's answer that it fails with.
var asRegistry = [5]string{"old", "new", "404", "401", "503"}

// verdicts are by pin, behavior and local state.
var verdicts = map[string]map[policy.Behavior]map[string][5]string{
	"": {
		policy.Default: {
			"absent": asRegistry, "adopted": asRegistry, "unproved": asRegistry,
			"own":   {"old", "new", "404", "401", "old"},
			"other": {"old", "new", "404", "401", "old"},
			"split": {"old", "new", "404", "401", "old"}, "adopted beside": {"old", "new", "404", "401", "old"},
			"imported": {"old", "new", "404", "401", "old"},
		},
		policy.Always: {
			"absent": asRegistry, "adopted": asRegistry, "unproved": asRegistry, "own": asRegistry, "other": asRegistry,
			"split": asRegistry, "adopted beside": asRegistry, "imported": asRegistry,
		},
		policy.Once: {
			"absent": asRegistry, "adopted": asRegistry, "imported": asRegistry,
			"own":   {"old!", "old!", "old!", "old!", "old!"},
			"other": {"old!", "old!", "old!", "old!", "old!"},
			"split": {"old!", "old!", "old!", "old!", "old!"}, "adopted beside": {"new!", "new!", "new!", "new!", "new!"},
			"unproved": {"old", "old", "404", "401", "503"},
		},
		policy.PreferCached: {
			"absent": asRegistry,
			"own":    {"old!", "old!", "old!", "old!", "old!"},
			"other":  {"old!", "old!", "old!", "old!", "old!"},
			"split":  {"old!", "old!", "old!", "old!", "old!"}, "adopted beside": {"old!", "old!", "old!", "old!", "old!"},
			"imported": {"old!", "old!", "old!", "old!", "old!"},
			"adopted":  {"old", "old", "404", "401", "503"}, "unproved": {"old", "old", "404", "401", "503"},
		},
	},
	"old": {
		policy.Default: {
			"absent": {"old", "old", "404", "401", "503"}, "adopted": {"old", "old", "404", "401", "503"},
			"own": {"old", "old", "404", "401", "old"}, "split": {"old", "old", "404", "401", "old"},
		},
		policy.Always:       {"absent": {"old", "old", "404", "401", "503"}, "own": {"old", "old", "404", "401", "503"}},
		policy.Once:         {"absent": {"old", "old", "404", "401", "503"}, "own": {"old!", "old!", "old!", "old!", "old!"}, "adopted": {"old", "old", "404", "401", "503"}},
		policy.PreferCached: {"absent": {"old", "old", "404", "401", "503"}, "split": {"old!", "old!", "old!", "old!", "old!"}},
	},
	"new": {
		policy.Default:      {"own": {"new", "new", "404", "401", "503"}, "split": {"new", "new", "404", "401", "new"}},
		policy.Once:         {"own": {"new", "new", "404", "401", "503"}, "split": {"new!", "new!", "new!", "new!", "new!"}},
		policy.PreferCached: {"own": {"new", "new", "404", "401", "503"}, "adopted beside": {"new!", "new!", "new!", "new!", "new!"}},
	},
}

// TestDecide goes through behavior, registry, node and pin: which digest a tag means for a target, and whether anybody is asked.
func TestDecide(t *testing.T) {
	for _, pinned := range slices.Sorted(maps.Keys(verdicts)) {
		for here, set := range localStates {
			d := newDeciding(t)
			set(t, d)
			decision := policy.Decision{}
			if pinned != "" {
				decision.Scope = policy.NodeScope
				id := pin.ID{Scope: policy.NodeScope, Ref: d.ref.String()}
				if _, err := d.Pins.Make(d.node.Context(t), id, d.roots[pinned], pin.ByUse, false); err != nil {
					t.Fatal(err)
				}
			}
			for behavior, cells := range verdicts[pinned] {
				want, ok := cells[here]
				if !ok {
					continue
				}
				decision.Behavior = behavior
				for i, state := range registryStates {
					t.Run(fmt.Sprintf("pin %s/%s/%s/%s", pinned, behavior, here, state.name), func(t *testing.T) {
						d.registry.status.Store(int32(state.status))
						d.registry.tag.Store(d.roots[state.tag])
						d.registry.asked.Store(0)
						v, err := d.decide(d.node.Context(t), question{ref: d.ref, decision: decision, target: d.own})
						if got := d.cell(v.Root.Digest, err); got != want[i] {
							t.Errorf("got %s, not %s: %v", got, want[i], err)
						}
					})
				}
			}
		}
	}
}

// cell is a verdict as the tables write it.
func (d *deciding) cell(root digest.Digest, err error) string {
	switch {
	case errdefs.IsNotFound(err):
		return "404"
	case errdefs.IsUnauthorized(err):
		return "401"
	case resolve.Unavailable(err):
		return "503"
	case err != nil:
		return "error"
	}
	for version, r := range d.roots {
		if r.Digest == root {
			if d.registry.asked.Load() == 0 {
				return version + "!"
			}
			return version
		}
	}
	return root.String()
}
