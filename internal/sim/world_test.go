package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/filters"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/internal/gcroots"
	"github.com/imagepin/imagepin/internal/sim/stockcri"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
)

const k8s = "k8s.io"

// In one of reconfigureEvery histories, a kill is followed by a start with another configuration.
const reconfigureEvery = 11

// snapshotters of the node, the default first.
var snapshotters = []string{"first", "second"}

// world is the state that survives a kill, and the environment of imagepin.
type world struct {
	leased atomic.Int64 // the number of leases that calls have created
	*scheduler
	choice choice

	dir    string
	bolt   *bolt.DB
	db     *metadata.DB
	images images.Store
	blobs  content.Store
	leases leases.Manager
	roots  *roots
	bus    *bus

	registry *registry
	cri      *containerdCRI
	proc     *process

	running int // number of actions that the history waits for
	mu      sync.Mutex

	reconfigured atomic.Bool // handler foreign has snapshotter second

	stream chan error // ends imagepin's event stream

	facts    facts
	problems []problem
}

// problem is an invariant that does not hold.
type problem struct {
	Name string // of the invariant
	What string
}

func (w *world) wrong(name, format string, args ...any) {
	text := w.plain(fmt.Sprintf(format, args...))
	w.mu.Lock()
	w.problems = append(w.problems, problem{name, text})
	w.mu.Unlock()
	w.write("WRONG", "%s: %s", name, text)
}

func newWorld(seed uint64, dir string) (*world, error) {
	w := &world{scheduler: newScheduler(seed), dir: dir}
	w.wrote = func(ctx context.Context, what string) {
		w.wrong(statusWrote, "a call of %s that only reads: %s", actorOf(ctx), what)
	}
	w.choice = choose(w.rng)
	if seed%reconfigureEvery == 0 && w.choice.slowGC == 0 {
		w.choice.reconfigure, w.choice.kill = true, true
		w.choice.before = append(w.choice.before, "pull app:1 foreign", "pull app:2 foreign")
	}
	// The directory is that of the history before. The first start is the first one of a boot, unless pulls would wait for its
	// collection too long.
	collected := durable.BootsIn(dir, "boot-collected")
	setBoot := collected.Remove
	if w.choice.slowGC > 0 {
		setBoot = collected.Settle
	}
	if err := errors.Join(setBoot(), durable.BootsIn(dir, "boot-compared").Remove()); err != nil {
		return nil, err
	}
	backends := make(map[string]snapshots.Snapshotter)
	for _, name := range snapshotters {
		backends[name] = newLayers()
	}
	var err error
	if err = os.WriteFile(filepath.Join(dir, "node.key"), make([]byte, 32), 0o600); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "metadata.db")
	_ = os.Remove(path)
	if w.bolt, err = bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true, NoFreelistSync: true}); err != nil {
		return nil, err
	}
	w.bus, w.roots = &bus{}, &roots{}
	w.db = metadata.NewDB(w.bolt, newBlobs(), backends, metadata.WithEventsPublisher(w.bus))
	if err := w.db.Init(inK8s(context.Background())); err != nil {
		return nil, err
	}
	w.db.RegisterCollectibleResource(gcroots.ResourceType, w.roots)
	w.images, w.blobs, w.leases = metadata.NewImageStore(w.db), w.db.ContentStore(), metadata.NewLeaseManager(w.db)
	w.registry = newRegistry(w)
	w.cri = newCRI(w)
	return w, nil
}

func inK8s(ctx context.Context) context.Context { return namespaces.WithNamespace(ctx, k8s) }

// begin runs an action of an actor. The history waits for its end.
func (w *world) begin(actor string, do func(ctx context.Context)) {
	w.mu.Lock()
	w.running++
	w.mu.Unlock()
	go func() {
		defer func() {
			w.mu.Lock()
			w.running--
			w.mu.Unlock()
		}()
		do(as(inK8s(context.Background()), actor))
	}()
}

func (w *world) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running == 0 && w.bus.delivered()
}

// collect runs containerd's garbage collection. It continues if the caller gives up.
func (w *world) collect(ctx context.Context) error {
	_, err := w.db.GarbageCollect(context.WithoutCancel(ctx))
	return err
}

// collectSlowly collects garbage for a process. It takes as long as the slowest snapshotter.
func (w *world) collectSlowly(ctx context.Context, p *process, format string, args ...any) error {
	if slow := w.choice.slowGC; slow > 0 {
		w.write(actorOf(ctx), "  the collection takes %s", slow)
		select {
		case <-time.After(slow):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := w.step(ctx, p, format, args...); err != nil {
		return err
	}
	return w.collect(ctx)
}

// roots is what the calls of the current process hold. A kill ends these calls.
type roots struct {
	mu      sync.Mutex
	current *gcroots.Roots
}

// begin returns the set of a process that starts.
func (r *roots) begin() *gcroots.Roots {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.current = gcroots.New()
	return r.current
}

// StartCollection implements metadata.Collector.
func (r *roots) StartCollection(ctx context.Context) (metadata.CollectionContext, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.current == nil {
		r.current = gcroots.New()
	}
	return r.current.StartCollection(ctx)
}

// ReferenceLabel implements metadata.Collector.
func (r *roots) ReferenceLabel() string { return "" }

// bus is containerd's event exchange: every subscriber gets every event that matches its filters, in order, with a
// delay.
type bus struct {
	mu   sync.Mutex
	subs []*subscription
}

type subscription struct {
	filter filters.Filter
	queue  []*events.Envelope
	more   chan struct{}
	busy   bool
	closed bool
}

func (b *bus) Publish(ctx context.Context, topic string, event events.Event) error {
	ns, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return err
	}
	encoded, err := typeurl.MarshalAny(event)
	if err != nil {
		return err
	}
	e := &events.Envelope{Timestamp: time.Now(), Namespace: ns, Topic: topic, Event: encoded}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.subs {
		if s.filter.Match(e) && !s.closed {
			s.queue = append(s.queue, e)
			select {
			case s.more <- struct{}{}:
			default:
			}
		}
	}
	return nil
}

// delivered reports whether all events have been handled.
func (b *bus) delivered() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.ContainsFunc(b.subs, func(s *subscription) bool { return !s.closed && (len(s.queue) > 0 || s.busy) })
}

// follow passes events one after the other to handle, until ctx ends.
func (b *bus) follow(ctx context.Context, handle func(*events.Envelope), fs ...string) {
	filter, err := filters.ParseAll(fs...)
	if err != nil {
		panic(err)
	}
	s := &subscription{filter: filter, more: make(chan struct{}, 1)}
	b.mu.Lock()
	b.subs = append(b.subs, s)
	b.mu.Unlock()
	go func() {
		defer func() {
			b.mu.Lock()
			s.closed = true
			b.mu.Unlock()
		}()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.more:
			}
			for {
				b.mu.Lock()
				if len(s.queue) == 0 || ctx.Err() != nil {
					s.busy = false
					b.mu.Unlock()
					break
				}
				e := s.queue[0]
				s.queue, s.busy = s.queue[1:], true
				b.mu.Unlock()
				handle(e)
			}
		}
	}()
}

// describe returns the topic of an event, and the image, snapshot or blob that it is about.
func describe(e *events.Envelope) (topic, name string) {
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		return e.Topic, err.Error()
	}
	switch v := v.(type) {
	case *eventsapi.ImageCreate:
		return e.Topic, v.Name
	case *eventsapi.ImageUpdate:
		return e.Topic, v.Name
	case *eventsapi.ImageDelete:
		return e.Topic, v.Name
	case *eventsapi.SnapshotCommit:
		return e.Topic, v.Name
	case *eventsapi.SnapshotRemove:
		return e.Topic, withoutRandom(v.Key)
	case *eventsapi.ContentDelete:
		return e.Topic, v.Digest
	}
	return e.Topic, ""
}

// applier is containerd's applier for uncompressed layers. It reads them, and writes nothing.
type applier struct {
	w     *world
	owner *process
}

func (a applier) Apply(ctx context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if err := a.w.step(ctx, a.owner, "apply %s", desc.Digest); err != nil {
		return ocispec.Descriptor{}, err
	}
	if _, err := content.ReadBlob(ctx, a.w.blobs, desc); err != nil {
		return ocispec.Descriptor{}, err
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: desc.Digest, Size: desc.Size}, nil
}

// archiveApplier applies layers that are unpacked while they are downloaded.
type archiveApplier struct {
	w     *world
	owner *process
	from  content.Provider
}

func (a archiveApplier) Apply(ctx context.Context, desc ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	if err := a.w.step(ctx, a.owner, "apply %s", desc.Digest); err != nil {
		return ocispec.Descriptor{}, err
	}
	archive, err := a.from.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer archive.Close()
	d, err := digest.FromReader(content.NewReader(archive))
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d}, err
}

// containerdCRI is the model of containerd's CRI with its event monitor.
type containerdCRI struct {
	w       *world
	images  *stockcri.Service
	current *process // of containerd
	end     context.CancelFunc
	// initialized is closed after the images have been recovered. Before that, every call fails with "not initialized
	// yet" (checkInitialized in internal/cri/instrument/instrumented_service.go), and callers try again.
	initialized <-chan struct{}

	mu         sync.Mutex
	sandboxes  map[string]*sandbox
	containers map[string]*container
	made       int
}

// process returns the current process of containerd's CRI.
func (c *containerdCRI) process() *process { return c.current }

func newCRI(w *world) *containerdCRI {
	c := &containerdCRI{w: w, sandboxes: make(map[string]*sandbox), containers: make(map[string]*container)}
	return c
}

// start starts as containerd does: it follows events, and reads the existing images at the same time.
func (c *containerdCRI) start() {
	ctx, cancel := context.WithCancel(as(inK8s(context.Background()), "cri"))
	c.end = cancel
	proc := &process{w: c.w}
	c.current = proc
	c.images = stockcri.New(stockcri.Config{Images: &imageStore{Store: c.w.images, w: c.w, owner: proc, name: "images"}, Content: c.w.blobs})
	cri, monitor := c.images, newEventMonitor(c.w, c.images, proc)
	c.w.bus.follow(ctx, func(e *events.Envelope) {
		if e.Namespace != k8s {
			return
		}
		topic, name := describe(e)
		monitor.handle(ctx, topic, name)
	}, `topic~="^/images/"`)
	initialized := make(chan struct{})
	c.initialized = initialized
	c.w.begin("cri-start", func(ctx context.Context) {
		_ = cri.Recover(ctx)
		close(initialized)
	})
	stop := c.end
	c.end = func() { stop(); c.w.kill(proc) }
}

func short(name string) string { return strings.TrimPrefix(name, "registry.example/") }

// put writes a blob, as another tool does.
func put(ctx context.Context, store content.Store, desc ocispec.Descriptor, data []byte) error {
	err := content.WriteBlob(ctx, store, "put-"+desc.Digest.String(), bytes.NewReader(data), desc)
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}
