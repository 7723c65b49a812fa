package sim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/cri"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// process is one run of imagepin, or of containerd's CRI, from its start to its kill.
type process struct {
	w        *world
	dead     bool // guarded by the scheduler
	away     bool // containerd does not run; guarded by the scheduler
	remote   bool // its calls of containerd cross a socket, and fail if their context has ended
	service  *node.Service
	setup    node.Setup
	services map[string]*grpc.ServiceDesc
	impl     map[string]any
	ctx      context.Context
	cancel   context.CancelFunc
	ended    chan struct{}
}

// pinTTL is how long an unused pin is kept.
const pinTTL = 24 * time.Hour

// handlers are the handlers of the node: the default, one with another snapshotter, and one with another platform.
var handlers = []string{"runc", "second", "foreign"}

func native() string { return platforms.Format(platforms.Normalize(platforms.DefaultSpec())) }

func foreign() string {
	if strings.HasPrefix(native(), "linux/arm64") {
		return "linux/amd64"
	}
	return "linux/arm64"
}

// target returns the current target of a handler, in the form of key labels.
func (w *world) target(handler string) (platform, snapshotter string) {
	switch {
	case handler == "second":
		return native(), "second"
	case handler == "foreign" && w.reconfigured.Load():
		return foreign(), "second"
	case handler == "foreign":
		return foreign(), "first"
	}
	return native(), "first"
}

// startProcess starts imagepin.
func (w *world) startProcess() error {
	p := &process{w: w, remote: w.choice.socket, services: make(map[string]*grpc.ServiceDesc), impl: make(map[string]any), ended: make(chan struct{})}
	var section config.Table
	if t, err := config.DefaultTable(); err == nil {
		section = *t
	}
	section["version_consistency"] = w.choice.consistency
	section["retain"] = w.choice.retain
	section["pull_behavior"] = w.choice.behavior
	section["max_concurrent_unpacks"] = int64(1)
	section["pin_ttl"] = pinTTL.String()
	if w.choice.cap > 0 {
		section["max_pins_per_namespace"] = int64(w.choice.cap)
	}
	settings, err := section.Check()
	if err != nil {
		return err
	}
	var criConfig config.CRI
	criConfig.Images.Snapshotter = "first"
	criConfig.Images.ImagePullProgressTimeout = "0s"
	criConfig.Images.MaxConcurrentDownloads = 3
	criConfig.Images.StatsCollectPeriod = 10
	criConfig.Images.DiscardUnpackedLayers = w.choice.discard
	_, foreignOn := w.target("foreign")
	criConfig.Images.RuntimePlatforms = map[string]config.Platform{"foreign": {Platform: foreign(), Snapshotter: foreignOn}}
	criConfig.Runtime.Containerd.DefaultRuntimeName = "runc"
	criConfig.Runtime.Containerd.Runtimes = map[string]config.Handler{
		"runc": {}, "second": {Snapshotter: "second"}, "foreign": {Snapshotter: foreignOn},
	}
	loaded := make(map[string]node.Snapshotter)
	for _, name := range snapshotters {
		loaded[name] = node.Snapshotter{Root: "/nowhere/" + name}
	}
	p.setup = node.Setup{Settings: settings, CRI: criConfig, Snapshotters: loaded, Verifiers: w.verifiers(p)}
	services := node.Containerd{
		Records:    &records{imageStore{Store: w.images, w: w, owner: p, name: "images"}},
		Pins:       &imageStore{Store: w.images, w: w, owner: p, name: "pins"},
		Content:    &contentStore{Store: w.blobs, w: w, owner: p},
		Leases:     &leaseManager{Manager: w.leases, w: w, owner: p},
		Namespaces: namespaceStore{w},
		Events:     eventService{w, p},
		Applier:    applier{w, p},
		Snapshots: func(name string) snapshots.Snapshotter {
			return &snapshotter{Snapshotter: w.db.Snapshotter(name), w: w, owner: p, name: name}
		},
	}
	if w.choice.socket {
		services = node.Uninterrupted(services)
	}
	n, err := node.New(node.Config{
		Containerd: services,
		Setup:      p.setup,
		NodeKey:    filepath.Join(w.dir, "node.key"), Transport: w.registry.of(p),
		KeysARecord: int(w.seed % 3), // low, so that the few tags of this node reach it; 0 is the default
	})
	if err != nil {
		return err
	}
	if p.service, err = n.Serve(cri.Remote(upstream{w, p})); err != nil {
		return err
	}
	if err := p.service.Register(p); err != nil {
		return err
	}
	p.ctx, p.cancel = context.WithCancel(as(context.Background(), "daemon"))
	w.proc = p
	go func() {
		defer close(p.ended)
		p.service.Follow(p.ctx)
	}()
	return nil
}

// reload makes the current process list the images again, as a SIGHUP does, unless it is being killed.
func (w *world) reload() error {
	p := w.proc
	if w.alive(p) != nil {
		return nil
	}
	return p.service.Reload(p.setup)
}

// kill ends a process: its later writes have no effect.
func (p *process) kill() {
	p.w.kill(p)
	p.cancel()
	p.service.Close()
}

// RegisterService implements grpc.ServiceRegistrar.
func (p *process) RegisterService(desc *grpc.ServiceDesc, impl any) {
	p.services[desc.ServiceName], p.impl[desc.ServiceName] = desc, impl
}

// call calls a method of imagepin's services.
func call[Resp proto.Message](ctx context.Context, p *process, service, method string, req proto.Message) (resp Resp, _ error) {
	if !strings.Contains(service, ".") {
		service = "runtime.v1." + service
	}
	for _, m := range p.services[service].Methods {
		if m.MethodName != method {
			continue
		}
		out, err := m.Handler(p.impl[service], ctx, func(into any) error {
			b, err := proto.Marshal(req)
			if err != nil {
				return err
			}
			return proto.Unmarshal(b, into.(proto.Message))
		}, nil)
		if err != nil {
			return resp, err
		}
		if resp, ok := out.(Resp); ok {
			return resp, nil
		}
		b, err := proto.Marshal(out.(proto.Message)) // forwarded messages are not decoded
		if err != nil {
			return resp, err
		}
		resp = resp.ProtoReflect().Type().New().Interface().(Resp)
		return resp, proto.Unmarshal(b, resp)
	}
	return resp, fmt.Errorf("no method %s", method)
}

// inTx marks the context of a transaction, in which no call parks.
type inTx struct{}

// imageStore is containerd's image store for a process.
type imageStore struct {
	images.Store
	w     *world
	owner *process
	name  string
}

func (i *imageStore) step(ctx context.Context, format string, args ...any) error {
	if ctx.Value(inTx{}) != nil {
		return nil
	}
	return i.w.step(ctx, i.owner, i.name+"."+format, args...)
}

// daemonRemoved records a removal by imagepin's daemon after a write of another tool.
func (w *world) daemonRemoved(ctx context.Context) {
	if actorOf(ctx) == "daemon" && w.facts.otherTools.Load() {
		w.facts.toolAt.Store(int64(w.steps))
	}
}

// after is an optional step after a write, which can delay the next action of the process.
func (w *world) after(ctx context.Context, owner *process, what string) error {
	if ctx.Value(inTx{}) != nil || !w.some(ctx, w.plan.after, what) {
		return nil
	}
	return w.step(ctx, owner, "%s is done", what)
}

func (i *imageStore) Get(ctx context.Context, name string) (images.Image, error) {
	if err := i.step(ctx, "get %s", name); err != nil {
		return images.Image{}, err
	}
	return i.Store.Get(ctx, name)
}

func (i *imageStore) List(ctx context.Context, fs ...string) ([]images.Image, error) {
	if err := i.step(ctx, "list"); err != nil {
		return nil, err
	}
	began := i.w.steps
	all, err := i.Store.List(ctx, fs...)
	if i.name == "pins" {
		if err := i.step(ctx, "list is done"); err != nil {
			return nil, err
		}
		i.w.facts.pinsListed(began, i.w.steps)
	}
	return all, err
}

func (i *imageStore) Create(ctx context.Context, img images.Image) (images.Image, error) {
	if err := i.step(ctx, "create %s → %s", img.Name, img.Target.Digest); err != nil {
		return images.Image{}, err
	}
	var answer error
	made, err := i.Store.Create(ctx, img)
	if err == nil && i.name == "pins" {
		i.w.facts.pins.Store(img.Name, true)
		done := i.w.facts.pinWritten(img.Name, i.w.steps, img.Target.Digest)
		defer func() { done(i.w.steps, answer) }()
	}
	if answer = i.w.after(ctx, i.owner, i.name+".create "+img.Name); answer != nil {
		return made, answer
	}
	return made, err
}

func (i *imageStore) Update(ctx context.Context, img images.Image, paths ...string) (images.Image, error) {
	slices.Sort(paths)
	if err := i.step(ctx, "update %s → %s", img.Name, img.Target.Digest); err != nil {
		return images.Image{}, err
	}
	if now, err := i.Store.Get(ctx, img.Name); err == nil && now.Target.Digest != img.Target.Digest &&
		slices.Contains(paths, "target") && strings.HasPrefix(actorOf(ctx), "cri") {
		i.w.facts.movedByCRI.Store(img.Name, true)
	}
	var answer error
	made, err := i.Store.Update(ctx, img, paths...)
	if err == nil && i.name == "pins" {
		done := i.w.facts.pinWritten(img.Name, i.w.steps, made.Target.Digest)
		defer func() { done(i.w.steps, answer) }()
	}
	if answer = i.w.after(ctx, i.owner, i.name+".update "+img.Name); answer != nil {
		return made, answer
	}
	return made, err
}

func (i *imageStore) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) (answer error) {
	if err := i.step(ctx, "delete %s", name); err != nil {
		return err
	}
	var o images.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if err := i.Store.Delete(ctx, name, opts...); err != nil {
		return err
	}
	if i.name == "pins" {
		done := i.w.facts.pinWritten(name, i.w.steps, "")
		defer func() { done(i.w.steps, answer) }()
	}
	i.w.daemonRemoved(ctx)
	defer i.w.daemonRemoved(ctx) // the index still has the keys of the record until the answer comes
	if !o.Synchronous {
		return i.w.after(ctx, i.owner, i.name+".delete "+name)
	}
	if err := i.step(ctx, "collect after delete %s", name); err != nil {
		return err
	}
	return i.w.collect(ctx)
}

// records implements store.Records. It has transactions if imagepin runs in containerd, and none over its socket.
type records struct{ imageStore }

func (r *records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	if r.w.choice.socket {
		return fn(ctx, r)
	}
	if err := r.step(ctx, "transaction"); err != nil {
		return err
	}
	n := &txStore{Store: r.Store, w: r.w}
	if err := r.w.db.Update(func(tx *bolt.Tx) error {
		return fn(context.WithValue(boltutil.WithTransaction(ctx, tx), inTx{}, true), n)
	}); err != nil {
		return err
	}
	if n.deletes {
		defer r.w.daemonRemoved(ctx) // the index still has the keys of the records until the transaction is done
	}
	if err := r.w.after(ctx, r.owner, "transaction"); err != nil {
		return err
	}
	for _, e := range n.events {
		if err := r.w.bus.Publish(ctx, e.topic, e.event); err != nil {
			return err
		}
	}
	return nil
}

// txStore prints the writes of a transaction and keeps their events.
type txStore struct {
	images.Store
	w       *world
	events  []txEvent
	deletes bool
}

type txEvent struct {
	topic string
	event events.Event
}

func (n *txStore) Create(ctx context.Context, img images.Image) (images.Image, error) {
	img, err := n.Store.Create(ctx, img)
	n.w.write(actorOf(ctx), "  creates %s → %s%s", img.Name, img.Target.Digest, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/create", &eventsapi.ImageCreate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *txStore) Update(ctx context.Context, img images.Image, paths ...string) (images.Image, error) {
	slices.Sort(paths)
	img, err := n.Store.Update(ctx, img, paths...)
	n.w.write(actorOf(ctx), "  updates %s → %s%s", img.Name, img.Target.Digest, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/update", &eventsapi.ImageUpdate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *txStore) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	n.deletes = true
	n.w.daemonRemoved(ctx)
	err := n.Store.Delete(ctx, name, opts...)
	n.w.write(actorOf(ctx), "  deletes %s%s", name, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/delete", &eventsapi.ImageDelete{Name: name}})
	}
	return err
}

func suffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

// contentStore is containerd's content store for a process.
type contentStore struct {
	content.Store
	w     *world
	owner *process
}

func (c *contentStore) read(ctx context.Context, what string) error {
	if !c.w.some(ctx, c.w.plan.reads, what) {
		return c.w.alive(c.owner)
	}
	return c.w.step(ctx, c.owner, "%s", what)
}

// alive returns an error if the process has been killed, or its containerd does not run.
func (s *scheduler) alive(owner *process) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return owner.state()
}

// state returns the error of all calls of the process, or nil. The caller holds the lock of the scheduler.
func (p *process) state() error {
	switch {
	case p == nil:
		return nil
	case p.dead:
		return errKilled
	case p.away:
		return errAway
	}
	return nil
}

func (c *contentStore) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	if err := c.read(ctx, "content.info "+d.String()); err != nil {
		return content.Info{}, err
	}
	return c.Store.Info(ctx, d)
}

func (c *contentStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if err := c.read(ctx, "content.read "+desc.Digest.String()); err != nil {
		return nil, err
	}
	return c.Store.ReaderAt(ctx, desc)
}

func (c *contentStore) Walk(ctx context.Context, fn content.WalkFunc, fs ...string) error {
	if err := c.w.step(ctx, c.owner, "content.walk"); err != nil {
		return err
	}
	return c.Store.Walk(ctx, fn, fs...)
}

func (c *contentStore) Update(ctx context.Context, info content.Info, paths ...string) (content.Info, error) {
	slices.Sort(paths)
	if err := c.w.step(ctx, c.owner, "content.update %s %s", info.Digest, strings.Join(paths, " ")); err != nil {
		return content.Info{}, err
	}
	return c.Store.Update(ctx, info, paths...)
}

func (c *contentStore) Delete(ctx context.Context, d digest.Digest) error {
	if err := c.w.step(ctx, c.owner, "content.delete %s", d); err != nil {
		return err
	}
	return c.Store.Delete(ctx, d)
}

func (c *contentStore) Abort(ctx context.Context, ref string) error {
	if err := c.w.step(ctx, c.owner, "content.abort %s", ref); err != nil {
		return err
	}
	return c.Store.Abort(ctx, ref)
}

func (c *contentStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return nil, err
		}
	}
	if err := c.w.step(ctx, c.owner, "content.write %s", o.Desc.Digest); err != nil {
		return nil, err
	}
	w, err := c.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &contentWriter{Writer: w, c: c, what: o.Desc.Digest.String()}, nil
}

type contentWriter struct {
	content.Writer
	c    *contentStore
	what string
}

func (w *contentWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	if err := w.c.w.step(ctx, w.c.owner, "content.commit %s", w.what); err != nil {
		return err
	}
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// leaseManager is containerd's lease manager for a process.
type leaseManager struct {
	leases.Manager
	w     *world
	owner *process
}

func (l *leaseManager) step(ctx context.Context, format string, args ...any) error {
	if ctx.Value(inTx{}) != nil {
		return nil
	}
	return l.w.step(ctx, l.owner, format, args...)
}

// randomID matches the lease IDs of leases.WithRandomID. Calls that run at the same time draw random numbers in any order.
var randomID = regexp.MustCompile(`^\d+-.{4}$`)

func (l *leaseManager) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var of leases.Lease
	for _, opt := range opts {
		if err := opt(&of); err != nil {
			return leases.Lease{}, err
		}
	}
	random := randomID.MatchString(of.ID)
	if random {
		of.ID = ""
	}
	if err := l.step(ctx, "lease.create %s %s", of.Labels["io.imagepin.lease"], of.ID); err != nil {
		return leases.Lease{}, err
	}
	if random {
		of.ID = fmt.Sprintf("lease-%d", l.w.leased.Add(1)) // the same in a replay
	}
	return l.Manager.Create(ctx, func(to *leases.Lease) error { *to = of; return nil })
}

func (l *leaseManager) Delete(ctx context.Context, lease leases.Lease, opts ...leases.DeleteOpt) error {
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if err := l.step(ctx, "lease.delete %s", lease.ID); err != nil {
		return err
	}
	if err := l.Manager.Delete(ctx, lease); err != nil {
		return err
	}
	if !o.Synchronous {
		return nil
	}
	if slow := l.w.choice.slowGC; slow > 0 {
		l.w.write(actorOf(ctx), "  the collection takes %s", slow)
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := l.step(ctx, "collect after lease.delete %s", lease.ID); err != nil {
		return err
	}
	return l.w.collect(ctx)
}

func (l *leaseManager) List(ctx context.Context, fs ...string) ([]leases.Lease, error) {
	if err := l.step(ctx, "lease.list"); err != nil {
		return nil, err
	}
	return l.Manager.List(ctx, fs...)
}

func (l *leaseManager) AddResource(ctx context.Context, lease leases.Lease, r leases.Resource) error {
	if err := l.step(ctx, "lease.add %s: %s %s", lease.ID, r.Type, r.ID); err != nil {
		return err
	}
	return l.Manager.AddResource(ctx, lease, r)
}

func (l *leaseManager) DeleteResource(ctx context.Context, lease leases.Lease, r leases.Resource) error {
	if err := l.step(ctx, "lease.remove %s: %s %s", lease.ID, r.Type, r.ID); err != nil {
		return err
	}
	return l.Manager.DeleteResource(ctx, lease, r)
}

func (l *leaseManager) ListResources(ctx context.Context, lease leases.Lease) ([]leases.Resource, error) {
	if err := l.step(ctx, "lease.resources %s", lease.ID); err != nil {
		return nil, err
	}
	return l.Manager.ListResources(ctx, lease)
}

// snapshotter is a snapshotter of containerd for a process.
type snapshotter struct {
	snapshots.Snapshotter
	w     *world
	owner *process
	name  string
}

func (s *snapshotter) step(ctx context.Context, format string, args ...any) error {
	return s.w.step(ctx, s.owner, s.name+"."+format, args...)
}

func (s *snapshotter) Stat(ctx context.Context, key string) (snapshots.Info, error) {
	if err := s.step(ctx, "stat %s", key); err != nil {
		return snapshots.Info{}, err
	}
	return s.Snapshotter.Stat(ctx, key)
}

func (s *snapshotter) Walk(ctx context.Context, fn snapshots.WalkFunc, fs ...string) error {
	if err := s.step(ctx, "walk"); err != nil {
		return err
	}
	return s.Snapshotter.Walk(ctx, fn, fs...)
}

func (s *snapshotter) Prepare(ctx context.Context, key, parent string, opts ...snapshots.Opt) ([]mount.Mount, error) {
	if err := s.step(ctx, "prepare on %q", parent); err != nil {
		return nil, err
	}
	return s.Snapshotter.Prepare(ctx, key, parent, opts...)
}

func (s *snapshotter) Commit(ctx context.Context, name, key string, opts ...snapshots.Opt) error {
	if err := s.step(ctx, "commit %s", name); err != nil {
		return err
	}
	return s.Snapshotter.Commit(ctx, name, key, opts...)
}

func (s *snapshotter) Remove(ctx context.Context, key string) error {
	if err := s.step(ctx, "remove"); err != nil {
		return err
	}
	return s.Snapshotter.Remove(ctx, key)
}

func (s *snapshotter) Update(ctx context.Context, info snapshots.Info, paths ...string) (snapshots.Info, error) {
	if err := s.step(ctx, "update %s", info.Name); err != nil {
		return snapshots.Info{}, err
	}
	return s.Snapshotter.Update(ctx, info, paths...)
}

// namespaceStore is containerd's namespace store.
type namespaceStore struct{ w *world }

func (n namespaceStore) with(fn func(namespaces.Store) error) error {
	return n.w.db.Update(func(tx *bolt.Tx) error { return fn(metadata.NewNamespaceStore(tx)) })
}

func (n namespaceStore) Create(ctx context.Context, name string, labels map[string]string) error {
	return n.with(func(s namespaces.Store) error { return s.Create(ctx, name, labels) })
}

func (n namespaceStore) Labels(ctx context.Context, name string) (labels map[string]string, err error) {
	err = n.with(func(s namespaces.Store) error { labels, err = s.Labels(ctx, name); return err })
	return labels, err
}

func (n namespaceStore) SetLabel(ctx context.Context, name, key, value string) error {
	return n.with(func(s namespaces.Store) error { return s.SetLabel(ctx, name, key, value) })
}

func (n namespaceStore) List(ctx context.Context) (all []string, err error) {
	err = n.with(func(s namespaces.Store) error { all, err = s.List(ctx); return err })
	return all, err
}

func (n namespaceStore) Delete(ctx context.Context, name string, opts ...namespaces.DeleteOpts) error {
	return n.with(func(s namespaces.Store) error { return s.Delete(ctx, name, opts...) })
}

// eventService delivers containerd's events to a process with a delay.
type eventService struct {
	w     *world
	owner *process
}

func (e eventService) Publish(ctx context.Context, topic string, event events.Event) error {
	if err := e.w.alive(e.owner); err != nil {
		return err
	}
	return e.w.bus.Publish(ctx, topic, event)
}

func (e eventService) Subscribe(ctx context.Context, fs ...string) (<-chan *events.Envelope, <-chan error) {
	ch, errs := make(chan *events.Envelope), make(chan error, 1)
	e.w.mu.Lock()
	e.w.stream = errs
	e.w.mu.Unlock()
	e.w.bus.follow(as(ctx, "events"), func(env *events.Envelope) {
		topic, name := describe(env)
		if err := e.w.step(as(ctx, "events"), e.owner, "%s %s", topic, name); err != nil {
			return
		}
		select {
		case ch <- env:
		case <-ctx.Done():
		}
	}, fs...)
	return ch, errs
}

// upstream is the connection to containerd's CRI.
type upstream struct {
	w     *world
	owner *process
}

func (u upstream) Invoke(ctx context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	name := method[strings.LastIndexByte(method, '/')+1:]
	if err := u.w.step(ctx, u.owner, "behind.%s %s", name, subject(args)); err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	req, err := proto.Marshal(args.(proto.Message))
	if err != nil {
		return err
	}
	resp, err := u.w.cri.answer(ctx, name, req)
	switch {
	case errors.Is(err, errKilled):
		return status.Error(codes.Unavailable, err.Error())
	case errdefs.IsNotFound(err):
		return status.Error(codes.NotFound, err.Error())
	case err != nil:
		return status.Error(codes.Unknown, err.Error())
	}
	out, err := proto.Marshal(resp)
	if err != nil {
		return err
	}
	return proto.Unmarshal(out, reply.(proto.Message))
}

func (upstream) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// subject returns the image, pod or container that a request names.
func subject(req any) string {
	switch r := req.(type) {
	case *runtime.ImageStatusRequest:
		return r.GetImage().GetImage()
	case *runtime.RemoveImageRequest:
		return r.GetImage().GetImage()
	case *runtime.PullImageRequest:
		return r.GetImage().GetImage()
	case *runtime.CreateContainerRequest:
		return r.GetPodSandboxId() + " of " + r.GetConfig().GetImage().GetImage()
	case *runtime.RunPodSandboxRequest:
		return r.GetConfig().GetMetadata().GetName()
	case *runtime.ContainerStatusRequest:
		return r.GetContainerId()
	case protoreflect.ProtoMessage:
		return ""
	}
	return ""
}
