package sim

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

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

// state returns the error of all calls of the process, or nil. The caller holds the mutex of the scheduler.
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

// extractKey matches the time and the random text in the key of a snapshot that containerd's unpacker prepares.
var extractKey = regexp.MustCompile(`extract-\d+-.{4}`)

// withoutRandom returns the key of a snapshot without the random text: pulls that end at the same time do so in any order.
func withoutRandom(key string) string { return extractKey.ReplaceAllString(key, "extract") }

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
	return l.w.collectSlowly(ctx, l.owner, "collect after lease.delete %s", lease.ID)
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
	if err := s.step(ctx, "remove %s", withoutRandom(key)); err != nil {
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
	if topic == lockTopic {
		e.w.lockInEffect()
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
