package decide

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pin/cluster"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// ownTarget is the target of the caller in the tests.
var (
	ownTarget   = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "own"}
	otherTarget = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "other"}
)

// roots are the versions of the tag by name.
var roots = map[string]ocispec.Descriptor{"old": root("old"), "new": root("new")}

func root(text string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: int64(len(text))}
}

// version returns the name of a version.
func version(d digest.Digest) string {
	for name, r := range roots {
		if r.Digest == d {
			return name
		}
	}
	return d.String()
}

// fakeRegistry is a registry with one tag. It serves all versions of the tag by digest.
type fakeRegistry struct {
	*httptest.Server
	status   atomic.Int32 // if not 0, the HTTP status of every response
	byDigest atomic.Int32 // if not 0, the HTTP status of every response to a request by digest
	tag      atomic.Value // the version that the tag resolves to, or another text for a tag that is gone
	requests atomic.Int64
	during   func() // called during each request, if it is not nil; set it before the request
}

func newFakeRegistry(t *testing.T) *fakeRegistry {
	a := &fakeRegistry{}
	a.tag.Store("old")
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// ServeHTTP implements http.Handler.
func (a *fakeRegistry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.requests.Add(1)
	if a.during != nil {
		a.during()
	}
	if status := int(a.status.Load()); status != 0 {
		w.WriteHeader(status)
		return
	}
	answer := roots[a.tag.Load().(string)]
	for _, d := range roots {
		if strings.HasSuffix(r.URL.Path, d.Digest.String()) {
			if status := int(a.byDigest.Load()); status != 0 {
				w.WriteHeader(status)
				return
			}
			answer = d
		}
	}
	if answer.Digest == "" {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", answer.MediaType)
	w.Header().Set("Docker-Content-Digest", answer.Digest.String())
	w.Header().Set("Content-Length", fmt.Sprint(answer.Size))
}

// imageList has the images of a node, and the proofs on their records.
type imageList struct {
	entries []imagepin.Entry
	proofs  []string
}

// ByRef implements Images.
func (l *imageList) ByRef(ref string) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(l.entries), func(e imagepin.Entry) bool { return e.Ref != ref })
}

// ByRoot implements Images.
func (l *imageList) ByRoot(root digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(l.entries), func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// ByManifest implements Images.
func (l *imageList) ByManifest(manifest digest.Digest) []imagepin.Entry {
	return slices.DeleteFunc(slices.Clone(l.entries), func(e imagepin.Entry) bool { return e.Manifest != manifest })
}

// HasProof implements ProofStore.
func (l *imageList) HasProof(proofs ...string) bool {
	return slices.ContainsFunc(proofs, func(p string) bool { return slices.Contains(l.proofs, p) })
}

// retained is the content that pins retain, and whether the limit is reached.
type retained struct {
	roots    map[digest.Digest]bool
	full     bool
	reserved int // reservations that are not released
	entries  []imagepin.Entry
	freed    func(digest.Digest) bool

	namespace string // of the last reservation
	over      string // the namespace that has more than its share
	// roomWithout is a digest without which there is room, although full is set.
	roomWithout digest.Digest
}

// OverShare implements Retained.
func (r *retained) OverShare(string, int64) func(string) bool {
	return func(namespace string) bool { return namespace == r.over }
}

// HoldsRoot implements Retained.
func (r *retained) HoldsRoot(root digest.Digest) bool { return r.roots[root] }

// Reserve implements Retained.
func (r *retained) Reserve(namespace string, _ func() int64, freed func(root digest.Digest) bool, entries ...imagepin.Entry) (func(), error) {
	r.namespace = namespace
	r.freed, r.entries = freed, entries
	if r.full && (freed == nil || r.roomWithout == "" || !freed(r.roomWithout)) {
		return nil, &imagepin.Error{Reason: imagepin.RetainLimitReached, Class: errdefs.ErrResourceExhausted}
	}
	r.reserved++
	return func() { r.reserved-- }, nil
}

// env is a node with a registry, a real pin store, a real resolver, and a list of images.
type env struct {
	*Decider
	authority *cluster.Authority // nil without a cluster
	member    *member
	ctx       context.Context
	node      *ctdtest.Node
	pins      *pin.Store
	images    *imageList
	retained  *retained
	registry  *fakeRegistry
	resolver  *resolve.Resolver
	ref       reference.Named
}

func newEnv(t *testing.T, rule policy.Rule, rules ...policy.Rule) *env {
	t.Helper()
	n := ctdtest.New(t)
	prover, err := resolve.NewProver(make([]byte, 32))
	noError(t, err)
	rulebook, err := policy.New(rule, rules, []string{"revision"})
	noError(t, err)
	e := &env{
		ctx: n.Context(t), node: n, images: &imageList{}, registry: newFakeRegistry(t), retained: &retained{roots: map[digest.Digest]bool{}},
		pins:     pin.New(pin.Config{Images: n.Images, Namespaces: ctdtest.Namespaces{DB: n.DB}}),
		resolver: resolve.New(resolve.Config{Timeout: time.Minute, Prover: prover}),
	}
	noError(t, e.pins.Load(e.ctx))
	e.ref = named(t, strings.TrimPrefix(e.registry.URL, "http://")+"/team/app:1")
	e.Decider = New(Config{
		Policy: ctdtest.Always(rulebook), Pins: e.pins, Images: e.images, Registry: e.resolver, Retained: e.retained,
		Proofs: NodeProofs{Prover: e.resolver, Stores: []ProofStore{e.images, e.pins}},
	})
	return e
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func named(t *testing.T, name string) reference.Named {
	t.Helper()
	ref, err := reference.ParseNamed(name)
	noError(t, err)
	return ref
}

func (e *env) byDigest(t *testing.T, version string) reference.Canonical {
	t.Helper()
	ref, err := reference.WithDigest(reference.TrimNamed(e.ref), roots[version].Digest)
	noError(t, err)
	return ref
}

// put makes a version ready for a target, by tag and by digest. by is the credential that the registry accepted for it,
// or nil. at is the time in seconds.
func (e *env) put(t *testing.T, version string, target runtimeplatform.Target, source imagepin.Source, by *resolve.Credential, at int) {
	t.Helper()
	for _, ref := range []string{e.ref.String(), e.byDigest(t, version).String()} {
		e.images.entries = append(e.images.entries, imagepin.Entry{
			Key: imagepin.Key{Ref: ref, Target: target}, Root: roots[version], Source: source, ReadyAt: time.Unix(int64(at), 0),
		})
	}
	if by != nil {
		e.images.proofs = append(e.images.proofs, e.resolver.Proof(e.ref, *by, roots[version].Digest))
	}
}

// asked returns the request for the tag and a pod, with the target of the caller.
func (e *env) asked(t *testing.T, pod policy.Pod) Request {
	t.Helper()
	q, err := e.request(e.ctx, e.ref, pod)
	noError(t, err)
	q.Target = ownTarget
	return q
}

func (e *env) id(scope policy.Scope) pin.ID { return pin.ID{Scope: scope, Ref: e.ref.String()} }

// pinned returns the version that the tag is pinned to in a scope, or "".
func (e *env) pinned(scope policy.Scope) string {
	if held, ok := e.pins.Get(e.id(scope)); ok {
		return version(held.Root.Digest)
	}
	return ""
}
