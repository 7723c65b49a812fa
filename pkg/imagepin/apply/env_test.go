package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/applied"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func hasReason(err error, reason imagepin.Reason) bool {
	e, ok := imagepinError(err)
	return ok && e.Reason == reason
}

// machine has the images that are ready on a node. It makes images ready without content.
type machine struct {
	mu       sync.Mutex
	entries  map[imagepin.Key]imagepin.Entry
	made     []pull.Locked
	removed  []imagepin.Key
	verified []string
	// make is called before an image is made. It may be nil.
	make func(ctx context.Context, l pull.Locked) error
	// verify is called for each verification. It may be nil.
	verify func(ref string) error
}

// Get implements Images.
func (m *machine) Get(k imagepin.Key) (imagepin.Entry, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.entries[k]
	return e, ok
}

// ByRoot implements Images.
func (m *machine) ByRoot(root digest.Digest) []imagepin.Entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Values(m.entries)), func(e imagepin.Entry) bool { return e.Root.Digest != root })
}

// Images implements Images.
func (m *machine) Images() (all []store.Image) {
	m.mu.Lock()
	defer m.mu.Unlock()
	byID := make(map[digest.Digest][]imagepin.Entry)
	for _, e := range m.entries {
		byID[e.ImageID] = append(byID[e.ImageID], e)
	}
	for id, entries := range byID {
		all = append(all, store.Image{ID: id, Entries: entries})
	}
	return all
}

// MakeLocked implements Puller.
func (m *machine) MakeLocked(ctx context.Context, l pull.Locked) (pull.Pulled, error) {
	m.mu.Lock()
	m.made = append(m.made, l)
	m.mu.Unlock()
	if m.make != nil {
		if err := m.make(ctx, l); err != nil {
			return pull.Pulled{}, err
		}
	}
	if d, ok := l.Ref.(reference.Digested); ok {
		l.Root.Digest = d.Digest()
	}
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: l.Ref.String(), Target: l.Runtime.Target}, Root: l.Root, ImageID: imageID(l.Root.Digest), Source: imagepin.SourcePull,
	}
	if l.From == pull.FromBundle {
		e.Source = imagepin.SourceImported
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[e.Key] = e
	return pull.Pulled{Entry: e}, nil
}

// EndImported implements Images.
func (m *machine) EndImported(_ context.Context, ref reference.Named, root digest.Digest) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k, e := range m.entries {
		if e.Root.Digest == root && e.Source == imagepin.SourceImported && imagepin.InRepository(e.Ref, ref.Name()) {
			e.Source = imagepin.SourcePull
			m.entries[k] = e
		}
	}
	return nil
}

func imageID(root digest.Digest) digest.Digest { return digest.FromString("image of " + root.String()) }

// Verify implements Puller.
func (m *machine) Verify(_ context.Context, ref reference.Named, _ ocispec.Descriptor) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.verified = append(m.verified, ref.String())
	if m.verify != nil {
		return m.verify(ref.String())
	}
	return nil
}

// RemoveKeys implements Remover.
func (m *machine) RemoveKeys(_ context.Context, keys []imagepin.Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		delete(m.entries, k)
		m.removed = append(m.removed, k)
	}
	return nil
}

// took returns what was made since the last call, as "reference on snapshotter", sorted.
func (m *machine) took() (all []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.made {
		all = append(all, familiar(l.Ref)+" "+l.Runtime.Target.Platform+" on "+l.Runtime.Target.Snapshotter)
	}
	m.made = nil
	slices.Sort(all)
	return all
}

func familiar(ref reference.Named) string {
	name, d, byDigest := strings.Cut(ref.String(), "@")
	if !byDigest {
		return strings.TrimPrefix(name, "registry.example/")
	}
	return strings.TrimPrefix(name, "registry.example/") + "@" + textOf(digest.Digest(d))
}

// texts has the texts of digests.
var texts sync.Map

func textOf(d digest.Digest) string {
	text, _ := texts.Load(d)
	s, _ := text.(string)
	return s
}

func root(text string) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: int64(len(text))}
	texts.Store(d.Digest, text)
	return d
}

// env is an Applier with a real store of locks and of pins.
type env struct {
	*Applier
	*machine
	ctx        context.Context
	node       *ctdtest.Node
	pins       *pin.Store
	applied    *applied.Store
	settings   Settings
	runtimes   *runtimeplatform.Set
	containers []Container
	sync       error
	synced     []imagepin.Entry
	notified   []Result
}

// handlers are a native handler, and one of another platform.
var handlers = []runtimeplatform.Handler{{Name: "runc", Snapshotter: "native"}, {Name: "arm", Platform: "linux/arm64", Snapshotter: "native"}}

func newEnv(t *testing.T, handlers ...runtimeplatform.Handler) *env {
	n := ctdtest.New(t, "native", "second")
	e := &env{node: n, ctx: n.Context(t), machine: &machine{entries: make(map[imagepin.Key]imagepin.Entry)}}
	e.configure(t, handlers...)
	e.pins = pin.New(pin.Config{Images: n.Images, Namespaces: ctdtest.Namespaces{DB: n.DB}})
	noError(t, e.pins.Load(e.ctx))
	e.applied = applied.New(applied.Config{
		Images: n.Images, Content: n.Content, Leases: n.Leases, Namespaces: ctdtest.Namespaces{DB: n.DB}, Pins: e.pins,
		Retain:   func(context.Context, ...digest.Digest) error { return nil },
		Retained: func(context.Context) ([]digest.Digest, error) { return nil, nil },
		Sync:     func(context.Context) error { return nil },
	})
	noError(t, e.applied.Load(e.ctx))
	e.Applier = New(Config{
		State: e.applied, Images: e.machine, Puller: e.machine, Remover: e.machine, Content: n.Content, Leases: n.Leases,
		Snapshotter: func(name string) snapshots.Snapshotter { return n.Snapshotter(name) },
		Runtimes:    func() *runtimeplatform.Set { return e.runtimes }, Settings: func() Settings { return e.settings },
		Containers: func(context.Context) ([]Container, error) { return e.containers, nil },
		Sync: func(_ context.Context, entries []imagepin.Entry) error {
			e.synced = entries
			return e.sync
		},
		Notify: func(_ context.Context, r Result) { e.notified = append(e.notified, r) },
	})
	return e
}

// inBubble runs a test with a fake clock. Only the Applier is in the bubble: the goroutine of containerd's event exchange does
// not end.
func (e *env) inBubble(t *testing.T, run func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		e.Applier = New(e.Applier.config)
		run(t)
	})
}

func (e *env) configure(t *testing.T, handlers ...runtimeplatform.Handler) {
	t.Helper()
	set, err := runtimeplatform.New("runc", handlers, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	noError(t, err)
	e.runtimes = set
}

// image returns an image of a lock. name is a tag, or a repository for an image without a tag.
func image(t testing.TB, name, text string, platforms ...string) lock.Image {
	t.Helper()
	name = "registry.example/" + name
	i := lock.Image{}
	repository, _, tagged := strings.Cut(name, ":")
	if tagged {
		i.ID = name
	}
	ref, err := imagepin.ParseReference(repository + "@" + root(text).Digest.String())
	noError(t, err)
	i.Ref = ref.(reference.Canonical)
	for _, p := range platforms {
		if i.Platforms == nil {
			i.Platforms = make(map[string]digest.Digest)
		}
		i.Platforms[p] = digest.FromString(text + p)
	}
	return i
}

func lockOf(t testing.TB, images ...lock.Image) *lock.Lock {
	t.Helper()
	l, err := lock.New(images)
	noError(t, err)
	return l
}

// locked returns the text of the digest that the pins of the lock have for a tag, or "".
func (e *env) locked(tag string) string {
	p, _ := e.pins.OfLock("registry.example/" + tag)
	return textOf(p.Root.Digest)
}

func (e *env) retained() (all []string) {
	for _, d := range e.pins.Retained() {
		all = append(all, textOf(d))
	}
	slices.Sort(all)
	return all
}

// noMatch is the error for an image that is not published for a target.
func noMatch(l pull.Locked) error {
	return &imagepin.Error{Reason: imagepin.NoMatchingPlatform, Ref: l.Ref.String(), Class: errdefs.ErrNotFound, Message: fmt.Sprint(l.Runtime.Target)}
}
