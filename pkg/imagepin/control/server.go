package control

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	containerdimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/compare"
	"github.com/imagepin/imagepin/pkg/imagepin/decide"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/pieces"
	"github.com/imagepin/imagepin/pkg/imagepin/lookup"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/reconcile"
	"github.com/imagepin/imagepin/pkg/imagepin/resolve"
	"github.com/imagepin/imagepin/pkg/imagepin/running"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/imagepin/usage"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Config has the dependencies of a Server. All fields are required, except Locks and Unverified.
type Config struct {
	Images      Images
	Puller      *pull.Puller
	Decider     Decider
	Pins        Pins
	Lookups     Lookups
	Content     content.Store
	Snapshotter func(name string) snapshots.Snapshotter
	// Runtimes returns the runtime handlers that are configured now.
	Runtimes func() *runtimeplatform.Set
	// GuestPull reports whether the guests of a runtime handler pull images themselves, and ForGuests whether a snapshotter gets no
	// files for this reason.
	GuestPull func(handler string) bool
	ForGuests func(snapshotter string) bool
	// Namespace is the containerd namespace of the CRI's images.
	Namespace string
	Health    Health
	// Unverified says why a key that is ready could not be compared with its layers. It may be nil.
	Unverified func(e imagepin.Entry) (why string)
	// Uninstall removes all of imagepin's records after it has stopped all writers. With dry it only counts them.
	Uninstall func(ctx context.Context, dry bool) (*api.UninstallResponse, error)
	Remover   Remover
	Exited    Exited
	// Locks is nil in a build without locks.
	Locks    Locks
	Usage    *usage.Meter
	Running  *running.Comparer
	Registry compare.Registry
	Pods     Pods
	// Events is containerd's event service, and Records its image store.
	Events  reconcile.Subscriber
	Records containerdimages.Store
	// LimitRate changes the limit of what the node receives, and returns it.
	LimitRate func(ctx context.Context, r *api.LimitRateRequest) (*api.DownloadRate, error)
	// Status returns the state of the node. It does not wait for the index.
	Status func(ctx context.Context) *api.StatusResponse
	// Guard runs a call. It waits until the index is built, recovers from panics so that they do not reach containerd,
	// and converts errors to statuses.
	Guard func(ctx context.Context, method string, call func() error) error
	// Recover is Guard for a call that does not need the index.
	Recover func(ctx context.Context, method string, call func() error) error
}

// Images has the images of the node. [store.Store] implements it.
type Images interface {
	Images() []store.Image
	Get(k imagepin.Key) (imagepin.Entry, bool)
	Find(name string) []imagepin.Entry
	// Damaged returns the keys that are recorded but not ready, and FindDamaged those of a reference or an image ID.
	Damaged() []store.Damaged
	FindDamaged(name string) []store.Damaged
}

// Pins has the pins of the node. [pin.Store] implements it.
type Pins interface {
	List() []pin.Pin
	// Scopes returns the pins of a reference.
	Scopes(ref string) []pin.Pin
	Remove(ctx context.Context, id pin.ID) (pin.Pin, error)
	Check(ctx context.Context) (checked int, findings []pin.Finding, _ error)
	Repair(ctx context.Context, f pin.Finding) (done string, _ error)
}

// Lookups looks up pins at their registries. [lookup.Looker] implements it.
type Lookups interface {
	Of(p pin.Pin) (lookup.Result, bool)
	Check(ctx context.Context, pins []pin.Pin) error
}

// Decider decides which digest a reference resolves to. [decide.Decider] implements it.
type Decider interface {
	Rule(ref string) policy.Rule
	// Resolve resolves a reference at the registry.
	Resolve(ctx context.Context, ref reference.Named, c resolve.Credential) (resolve.Resolved, error)
	// IgnoredAnnotations returns the annotations of a pod that do not apply to a reference.
	IgnoredAnnotations(ref string, pod policy.Pod) []string
	Preview(ctx context.Context, q decide.Request, scope policy.Scope) (decide.Verdict, policy.Rule, error)
	SetPin(ctx context.Context, s decide.SetPin) (held pin.Pin, previous digest.Digest, _ error)
	UndoPin(ctx context.Context, ref reference.Named, scope policy.Scope, c resolve.Credential) (held pin.Pin, previous digest.Digest, _ error)
}

// Remover removes images, through the CRI's own removal.
type Remover interface {
	// RemoveUnused removes the images that a name matches, for the target of a handler if it is not empty. It fails with
	// [imagepin.ImageInUse] if a container uses one.
	RemoveUnused(ctx context.Context, name, handler string) ([]imagepin.Entry, error)
	// Prune removes the images that nothing uses.
	Prune(ctx context.Context, o PruneOptions) ([]imagepin.Entry, error)
}

// PruneOptions select what a Remover prunes.
type PruneOptions struct {
	// Handler selects the images for the target of a runtime handler; empty selects all.
	Handler string
	// Before selects the images whose last use was before a time.
	Before time.Time
	// Pinned also selects images that a pin needs but does not retain.
	Pinned bool
	// DryRun removes nothing.
	DryRun bool
}

// Exited removes exited containers. [cri.Service] implements it.
type Exited interface {
	// RemoveExited removes the exited containers and the stopped sandboxes on an image's snapshots, from a layer up, and returns
	// what it has removed.
	RemoveExited(ctx context.Context, e imagepin.Entry, from digest.Digest) ([]string, error)
}

// Health checks and repairs. [reconcile.Reconciler] implements it.
type Health interface {
	Check(ctx context.Context, ref health.PinnedRef) (health.Report, error)
	DeepCheck(ctx context.Context, d health.DeepOptions) (health.Report, error)
	Repair(ctx context.Context, f health.Finding) (reconcile.Repaired, error)
	// LowestUnusable returns the chain ID of the lowest unusable snapshot of an image, or "" if there is none.
	LowestUnusable(ctx context.Context, e imagepin.Entry) (digest.Digest, error)
}

// Server is the control service.
type Server struct {
	api.UnimplementedControlServer
	config Config
}

// New returns a server.
func New(c Config) *Server { return &Server{config: c} }

// Register registers the service with a gRPC server.
func (s *Server) Register(g grpc.ServiceRegistrar) { api.RegisterControlServer(g, s) }

// guarded runs one call through Guard, and returns its answer.
func guarded[T any](ctx context.Context, s *Server, method string, call func(ctx context.Context) (T, error)) (resp T, err error) {
	err = s.config.Guard(ctx, method, func() (err error) {
		if err := s.checkNamespace(ctx); err != nil {
			return err
		}
		resp, err = call(namespaces.WithNamespace(ctx, s.config.Namespace))
		return err
	})
	return resp, err
}

// guardedStream runs one call that sends its answers through Guard.
func (s *Server) guardedStream(ctx context.Context, method string, call func(ctx context.Context) error) error {
	_, err := guarded(ctx, s, method, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

// Images implements the API.
func (s *Server) Images(ctx context.Context, r *api.ImagesRequest) (*api.ImagesResponse, error) {
	return guarded(ctx, s, "Images", func(context.Context) (*api.ImagesResponse, error) {
		keys, err := s.keys(r)
		return &api.ImagesResponse{Keys: keys}, err
	})
}

// StreamImages implements the API.
func (s *Server) StreamImages(r *api.ImagesRequest, stream grpc.ServerStreamingServer[api.ImagesResponse]) error {
	return s.guardedStream(stream.Context(), "StreamImages", func(context.Context) error {
		keys, err := s.keys(r)
		for piece := range pieces.Split(keys) {
			if err := stream.Send(&api.ImagesResponse{Keys: piece}); err != nil {
				return err
			}
		}
		return err
	})
}

// keys returns the keys that match a filter, sorted by reference and target.
func (s *Server) keys(r *api.ImagesRequest) ([]*api.Key, error) {
	matches, err := matcher(r.GetRefGlob())
	if err != nil {
		return nil, err
	}
	var of *runtimeplatform.Target
	if h := r.GetHandler(); h != "" {
		rt, err := s.lookup(h)
		if err != nil {
			return nil, err
		}
		of = &rt.Target
	}
	var keys []*api.Key
	for _, img := range s.config.Images.Images() {
		for _, e := range img.Entries {
			if matches(e.Ref) && (of == nil || *of == e.Target) {
				keys = append(keys, s.key(e))
			}
		}
	}
	for _, d := range s.config.Images.Damaged() {
		if matches(d.Ref) && (of == nil || *of == d.Target) {
			keys = append(keys, s.damagedKey(d))
		}
	}
	slices.SortFunc(keys, func(a, b *api.Key) int {
		return strings.Compare(a.Ref+"\x00"+a.Target.String(), b.Ref+"\x00"+b.Target.String())
	})
	return keys, nil
}

// lookup returns the runtime of a handler. Its error names the known handlers.
func (s *Server) lookup(handler string) (runtimeplatform.Runtime, error) {
	rt, err := s.config.Runtimes().Lookup(handler)
	return rt, imagepin.UnknownHandler(err)
}

// parseScope parses a scope as an operator writes it.
func parseScope(text string) (policy.Scope, error) {
	scope, err := policy.ParseScope(text)
	if err != nil {
		return "", imagepin.Invalid("scope", text, err)
	}
	return scope, nil
}

// parseAnyScope is parseScope for a request without a scope too, which is for all scopes.
func parseAnyScope(text string) (policy.Scope, error) {
	if text == "" {
		return "", nil
	}
	return parseScope(text)
}

// matcher compiles the glob of a filter; "" matches all references.
func matcher(glob string) (func(ref string) bool, error) {
	if glob == "" {
		return func(string) bool { return true }, nil
	}
	g, err := policy.ParseGlob(glob)
	if err != nil {
		return nil, imagepin.Invalid("reference glob", glob, err)
	}
	return g.Match, nil
}

// Resolve implements the API.
func (s *Server) Resolve(ctx context.Context, r *api.ResolveRequest) (*api.ResolveResponse, error) {
	return guarded(ctx, s, "Resolve", func(ctx context.Context) (*api.ResolveResponse, error) {
		ref, err := s.parseRef(r.GetRef())
		if err != nil {
			return nil, err
		}
		pod, handler, err := s.resolvedPod(ctx, r)
		if err != nil {
			return nil, err
		}
		rt, err := s.lookup(handler)
		if err != nil {
			return nil, err
		}
		scope, err := parseAnyScope(r.GetScope())
		if err != nil {
			return nil, err
		}
		q := decide.Request{Ref: ref, Credential: Credential(r.GetCredential()), Target: rt.Target, Pod: pod}
		v, by, err := s.config.Decider.Preview(ctx, q, scope)
		if err != nil {
			return nil, err
		}
		resp := &api.ResolveResponse{
			Ref: ref.String(), Target: Target(rt.Target), Rule: rule(by), Host: v.Host,
			Root: descriptor(v.Root), Why: v.Why, Pod: r.GetPod(), Ignored: s.config.Decider.IgnoredAnnotations(ref.String(), pod),
		}
		if v.Pin != nil {
			resp.Pin = Pin(*v.Pin)
		}
		if v.Registry != nil {
			resp.Registry = descriptor(*v.Registry)
		}
		if v.RegistryError != nil {
			resp.RegistryError = v.RegistryError.Error()
		}
		return resp, s.missing(ctx, ref, v, rt, resp)
	})
}

// Pull implements the API.
func (s *Server) Pull(r *api.PullRequest, stream grpc.ServerStreamingServer[api.PullResponse]) error {
	return s.guardedStream(stream.Context(), "Pull", func(ctx context.Context) error {
		rt, err := s.lookup(r.GetHandler())
		if err != nil {
			return err
		}
		progress := &progress{stream: stream}
		pulled, err := s.config.Puller.Pull(ctx, pull.Request{
			Ref: r.GetRef(), Runtime: rt, Credential: Credential(r.GetCredential()), Progress: progress.report,
		})
		if err != nil {
			return err
		}
		result := &api.PullResult{Key: s.key(pulled.Entry), Done: string(pulled.Outcome), OtherPlatform: pulled.OtherPlatform}
		if pulled.Fallback != nil {
			result.Fallback = resolve.RedactError(pulled.Fallback).Error()
		}
		return progress.send(&api.PullResponse{Result: result})
	})
}

// progress sends the progress events of the transfer service, which come from several goroutines.
type progress struct {
	mu     sync.Mutex
	stream grpc.ServerStreamingServer[api.PullResponse]
}

func (p *progress) report(t transfer.Progress) {
	a := &api.Progress{Event: t.Event, Offset: t.Progress, Total: t.Total}
	if t.Desc != nil {
		a.Digest, a.MediaType = t.Desc.Digest.String(), t.Desc.MediaType
	}
	// The context ends if the caller has gone.
	_ = p.send(&api.PullResponse{Progress: []*api.Progress{a}})
}

func (p *progress) send(m *api.PullResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream.Send(m)
}

// missing adds the content and snapshots that a target lacks to run a verdict's root.
func (s *Server) missing(ctx context.Context, ref reference.Named, v decide.Verdict, rt runtimeplatform.Runtime, resp *api.ResolveResponse) error {
	byDigest, err := reference.WithDigest(reference.TrimNamed(ref), v.Root.Digest)
	if err != nil {
		return err
	}
	if s.config.GuestPull(rt.Handler) {
		resp.GuestPulls = byDigest.String()
	}
	if e, ok := s.config.Images.Get(imagepin.Key{Ref: byDigest.String(), Target: rt.Target}); ok {
		resp.Manifest, resp.Ready = e.Manifest.String(), true
		return nil
	}
	snapshotter := rt.Target.Snapshotter
	m, err := pull.Missing(ctx, s.config.Content, s.config.Snapshotter(snapshotter), s.config.ForGuests(snapshotter), v.Root, rt)
	if err != nil {
		return err
	}
	resp.Manifest = m.Manifest.String()
	for _, b := range m.Parts {
		resp.Missing = append(resp.Missing, &api.Missing{What: b.Kind, Name: b.Name, Size: b.Size})
	}
	return nil
}
