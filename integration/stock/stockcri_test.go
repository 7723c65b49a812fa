package stock

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	ctrimages "github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/testkit"
	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/internal/sim/stockcri"
)

// modelled is the model of containerd's CRI on a metadata store of its own: it
// handles every event at once.
type modelled struct {
	images  ctrimages.Store
	content content.Store
	pinned  []string
	cri     *stockcri.Service
	changed []string // names in events that have not been handled
}

func newModelled(t *testing.T, pinned ...string) *modelled {
	t.Helper()
	m := &modelled{pinned: pinned}
	blobs, err := local.NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b, err := bolt.Open(filepath.Join(t.TempDir(), "metadata.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	db := metadata.NewDB(b, blobs, nil, metadata.WithEventsPublisher(m))
	if err := db.Init(m.context(t)); err != nil {
		t.Fatal(err)
	}
	m.images, m.content = metadata.NewImageStore(db), db.ContentStore()
	m.restart(t)
	return m
}

func (m *modelled) context(t *testing.T) context.Context {
	return namespaces.WithNamespace(t.Context(), node.Namespace)
}

// Publish implements events.Publisher.
func (m *modelled) Publish(_ context.Context, _ string, e events.Event) error {
	switch e := e.(type) {
	case *eventsapi.ImageCreate:
		m.changed = append(m.changed, e.Name)
	case *eventsapi.ImageUpdate:
		m.changed = append(m.changed, e.Name)
	case *eventsapi.ImageDelete:
		m.changed = append(m.changed, e.Name)
	}
	return nil
}

func (m *modelled) restart(t *testing.T) {
	m.cri = stockcri.New(stockcri.Config{Images: m.images, Content: m.content, PinnedImages: m.pinned})
	if err := m.cri.Recover(m.context(t)); err != nil {
		t.Fatal(err)
	}
}

// settle handles events until there are no more.
func (m *modelled) settle(t *testing.T) {
	for len(m.changed) > 0 {
		name := m.changed[0]
		m.changed = m.changed[1:]
		// Of what cannot be read containerd tries it again for as long as it runs.
		_ = m.cri.UpdateImage(m.context(t), name)
	}
}

// criState is what can be seen of containerd's CRI and its records.
func criState(records []ctrimages.Image, listed map[string]string) string {
	lines := make(map[string]string)
	for _, img := range records {
		lines["record "+img.Name] = fmt.Sprintf("→ %s managed=%q pinned=%q", img.Target.Digest,
			img.Labels["io.cri-containerd.image"], img.Labels["io.cri-containerd.pinned"])
	}
	for id, what := range listed {
		lines["image "+id] = what
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "%s %s\n", k, lines[k])
	}
	return b.String()
}

func (m *modelled) state(t *testing.T) string {
	records, err := m.images.List(m.context(t))
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]string)
	for _, img := range m.cri.List() {
		var refs []string
		for _, ref := range img.References {
			if !strings.HasPrefix(ref, "sha256:") {
				refs = append(refs, ref)
			}
		}
		slices.Sort(refs)
		listed[img.ID] = fmt.Sprintf("%s pinned=%t", refs, img.Pinned)
	}
	return criState(records, listed)
}

func realState(ctx context.Context, n *node.Node) (string, error) {
	records, err := n.Client().ImageService().List(namespaces.WithNamespace(ctx, node.Namespace))
	if err != nil {
		return "", err
	}
	resp, err := n.Images().ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return "", err
	}
	listed := make(map[string]string)
	for _, img := range resp.GetImages() {
		refs := append(slices.Clone(img.GetRepoTags()), img.GetRepoDigests()...)
		slices.Sort(refs)
		listed[img.GetId()] = fmt.Sprintf("%s pinned=%t", refs, img.GetPinned())
	}
	return criState(records, listed), nil
}

// settleReal waits until containerd's CRI has handled all events, and those of
// what it has written for them: it handles one after the other, and shows when a
// mark has had its turn.
func settleReal(t *testing.T, ctx context.Context, n *node.Node, mark ctrimages.Image) {
	t.Helper()
	records := n.Client().ImageService()
	listed := func(want bool) {
		t.Helper()
		testkit.Eventually(t, "the mark has had its turn", func(ctx context.Context) (bool, error) {
			resp, err := n.Images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: mark.Name}})
			return (resp.GetImage() != nil) == want, err
		})
	}
	for range 2 {
		if _, err := records.Create(ctx, mark); err != nil {
			t.Fatal(err)
		}
		listed(true)
		if err := records.Delete(ctx, mark.Name); err != nil {
			t.Fatal(err)
		}
		listed(false)
	}
}

// TestModelOfStockCRI runs the same script on containerd's own CRI and on the
// model of it that the simulator has behind imagepin: after every step both have
// the same records, and list the same images.
func TestModelOfStockCRI(t *testing.T) {
	t.Parallel()
	const repo = "registry.example/team/app"
	pause := repo + ":pause"
	n := testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: pause})
	model := newModelled(t, pause)
	ctx := namespaces.WithNamespace(testkit.Context(t), node.Namespace)

	// Two images, one with the configuration of the first, and one whose content is not there.
	blobs := ctdtest.Blobs{}
	platform := platforms.Format(platforms.DefaultSpec())
	a, b := blobs.Image(platform, "a", nil), blobs.Image(platform, "b", nil)
	again := blobs.Image(platform, "a", map[string]string{"pushed": "again"})
	roots := map[string]ocispec.Descriptor{
		"A": blobs.Index(a.Manifest), "B": b.Manifest, "C": blobs.Index(again.Manifest),
		"nowhere": ctdtest.Blobs{}.Index(a.Manifest, b.Manifest),
	}
	real := n.Client()
	l, err := real.LeasesService().Create(ctx, leases.WithID("script"))
	if err != nil {
		t.Fatal(err)
	}
	held := leases.WithLease(ctx, l.ID)
	write := func(ctx context.Context, store content.Store) {
		for d, data := range blobs {
			err := content.WriteBlob(ctx, store, d.String(), bytes.NewReader(data), ocispec.Descriptor{Digest: d, Size: int64(len(data))})
			if err != nil && !errdefs.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	write(held, real.ContentStore())
	write(model.context(t), model.content)

	names := []string{
		repo + ":1", repo + ":2", pause, repo + "@" + roots["A"].Digest.String(), repo + "@" + roots["B"].Digest.String(),
		a.Config.Digest.String(), b.Config.Digest.String(),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func() string { return names[rng.IntN(len(names))] }
	root := func() string { return []string{"A", "A", "B", "B", "C"}[rng.IntN(5)] }
	var script []string
	step := func(what string, do func(images ctrimages.Store, on context.Context) error, onCRI func(real bool) error) {
		t.Helper()
		script = append(script, what)
		var errs [2]error
		if do != nil {
			errs[0] = do(real.ImageService(), ctx)
			errs[1] = do(model.images, model.context(t))
		} else {
			errs[0], errs[1] = onCRI(true), onCRI(false)
		}
		if (errs[0] == nil) != (errs[1] == nil) {
			t.Fatalf("%s: %v, and of the model %v", strings.Join(script, "\n"), errs[0], errs[1])
		}
		model.settle(t)
		settleReal(t, ctx, n, ctrimages.Image{
			Name: repo + ":mark", Target: roots["A"], Labels: map[string]string{"io.cri-containerd.image": "managed"},
		})
		want := model.state(t)
		got, err := realState(ctx, n)
		if err != nil || got != want {
			t.Fatalf("after\n%s\ncontainerd has (%v)\n%s\nand the model\n%s", strings.Join(script, "\n"), err, got, want)
		}
	}
	set := func(name, to string) {
		step("set "+name+" to "+to, func(images ctrimages.Store, on context.Context) error {
			img := ctrimages.Image{Name: name, Target: roots[to]}
			_, err := images.Create(on, img)
			if errdefs.IsAlreadyExists(err) {
				_, err = images.Update(on, img, "target")
			}
			return err
		}, nil)
	}
	set(repo+":broken", "nowhere")
	for range 120 {
		name := pick()
		switch rng.IntN(10) {
		case 0, 1, 2, 3:
			set(name, root())
		case 4, 5:
			step("delete "+name, func(images ctrimages.Store, on context.Context) error {
				if err := images.Delete(on, name); err != nil && !errdefs.IsNotFound(err) {
					return err
				}
				return nil
			}, nil)
		case 6:
			step("take the labels off "+name, func(images ctrimages.Store, on context.Context) error {
				_, err := images.Update(on, ctrimages.Image{Name: name, Labels: map[string]string{}}, "labels")
				return err
			}, nil)
		case 7, 8:
			step("RemoveImage "+name, nil, func(real bool) error {
				if !real {
					return model.cri.RemoveImage(model.context(t), name)
				}
				_, err := n.Images().RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: name}})
				return err
			})
		case 9:
			if rng.IntN(3) > 0 {
				continue
			}
			step("restart", nil, func(on bool) error {
				if !on {
					model.restart(t)
					return nil
				}
				if err := n.Crash(); err != nil {
					return err
				}
				if err := n.Start(ctx); err != nil {
					return err
				}
				real = n.Client()
				return nil
			})
		}
	}
	if err := real.LeasesService().Delete(ctx, l); err != nil {
		t.Error(err)
	}
}
