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

// criModel is the model of containerd's CRI with its own metadata store. settle handles the events of the store.
type criModel struct {
	images  ctrimages.Store
	content content.Store
	pinned  []string
	cri     *stockcri.Service
	changed []string // names in events that are not handled yet
}

func newCRIModel(t *testing.T, pinned ...string) *criModel {
	t.Helper()
	m := &criModel{pinned: pinned}
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

func (m *criModel) context(t *testing.T) context.Context {
	return namespaces.WithNamespace(t.Context(), node.Namespace)
}

// Publish implements events.Publisher.
func (m *criModel) Publish(_ context.Context, _ string, e events.Event) error {
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

func (m *criModel) restart(t *testing.T) {
	m.cri = stockcri.New(stockcri.Config{Images: m.images, Content: m.content, PinnedImages: m.pinned})
	if err := m.cri.Recover(m.context(t)); err != nil {
		t.Fatal(err)
	}
}

// settle handles all events.
func (m *criModel) settle(t *testing.T) {
	for len(m.changed) > 0 {
		name := m.changed[0]
		m.changed = m.changed[1:]
		// The error is ignored: containerd retries images that it cannot read as long as it runs.
		_ = m.cri.UpdateImage(m.context(t), name)
	}
}

// criState formats the image records and the images that the CRI lists.
func criState(records []ctrimages.Image, listed map[string]string) string {
	lines := make(map[string]string)
	for _, img := range records {
		lines["record "+img.Name] = fmt.Sprintf("→ %s managed=%q pinned=%q", img.Target.Digest,
			img.Labels["io.cri-containerd.image"], img.Labels["io.cri-containerd.pinned"])
	}
	for id, img := range listed {
		lines["image "+id] = img
	}
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&b, "%s %s\n", k, lines[k])
	}
	return b.String()
}

func (m *criModel) state(t *testing.T) string {
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

// settleReal waits until containerd's CRI has handled all events, and then the events of its own writes. The CRI
// handles events in order, so all earlier events are handled when it lists the marker.
func settleReal(t *testing.T, ctx context.Context, n *node.Node, marker ctrimages.Image) {
	t.Helper()
	records := n.Client().ImageService()
	await := func(listed bool) {
		t.Helper()
		testkit.Eventually(t, fmt.Sprintf("the marker is listed: %t", listed), func(ctx context.Context) (bool, error) {
			resp, err := n.Images().ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: marker.Name}})
			return (resp.GetImage() != nil) == listed, err
		})
	}
	for range 2 {
		if _, err := records.Create(ctx, marker); err != nil {
			t.Fatal(err)
		}
		await(true)
		if err := records.Delete(ctx, marker.Name); err != nil {
			t.Fatal(err)
		}
		await(false)
	}
}

// TestModelOfStockCRI runs the same random script on containerd's own CRI and on the simulator's model of it. After
// every step, both have the same records and list the same images.
func TestModelOfStockCRI(t *testing.T) {
	t.Parallel()
	const repo = "registry.example/team/app"
	pause := repo + ":pause"
	n := testkit.Node(t, node.Options{Binary: node.Stock, SandboxImage: pause})
	model := newCRIModel(t, pause)
	ctx := namespaces.WithNamespace(testkit.Context(t), node.Namespace)

	// A and B are two images, C has the configuration of A, and the content of "nowhere" does not exist.
	blobs := ctdtest.Blobs{}
	platform := platforms.Format(platforms.DefaultSpec())
	a, b := blobs.Image(platform, "a", nil), blobs.Image(platform, "b", nil)
	again := blobs.Image(platform, "a", map[string]string{"pushed": "again"})
	roots := map[string]ocispec.Descriptor{
		"A": blobs.Index(a.Manifest), "B": b.Manifest, "C": blobs.Index(again.Manifest),
		"nowhere": ctdtest.Blobs{}.Index(a.Manifest, b.Manifest),
	}
	client := n.Client()
	l, err := client.LeasesService().Create(ctx, leases.WithID("script"))
	if err != nil {
		t.Fatal(err)
	}
	leased := leases.WithLease(ctx, l.ID)
	write := func(ctx context.Context, store content.Store) {
		for d, data := range blobs {
			err := content.WriteBlob(ctx, store, d.String(), bytes.NewReader(data), ocispec.Descriptor{Digest: d, Size: int64(len(data))})
			if err != nil && !errdefs.IsAlreadyExists(err) {
				t.Fatal(err)
			}
		}
	}
	write(leased, client.ContentStore())
	write(model.context(t), model.content)

	names := []string{
		repo + ":1", repo + ":2", pause, repo + "@" + roots["A"].Digest.String(), repo + "@" + roots["B"].Digest.String(),
		a.Config.Digest.String(), b.Config.Digest.String(),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func() string { return names[rng.IntN(len(names))] }
	root := func() string { return []string{"A", "A", "B", "B", "C"}[rng.IntN(5)] }
	var script []string
	step := func(name string, onStore func(ctx context.Context, images ctrimages.Store) error, onCRI func(real bool) error) {
		t.Helper()
		script = append(script, name)
		var errs [2]error
		if onStore != nil {
			errs[0] = onStore(ctx, client.ImageService())
			errs[1] = onStore(model.context(t), model.images)
		} else {
			errs[0], errs[1] = onCRI(true), onCRI(false)
		}
		if (errs[0] == nil) != (errs[1] == nil) {
			t.Fatalf("%s: containerd returns %v, the model returns %v", strings.Join(script, "\n"), errs[0], errs[1])
		}
		model.settle(t)
		settleReal(t, ctx, n, ctrimages.Image{
			Name: repo + ":marker", Target: roots["A"], Labels: map[string]string{"io.cri-containerd.image": "managed"},
		})
		want := model.state(t)
		got, err := realState(ctx, n)
		if err != nil || got != want {
			t.Fatalf("after\n%s\ngot from containerd (%v)\n%s\nwant, as the model\n%s", strings.Join(script, "\n"), err, got, want)
		}
	}
	set := func(name, to string) {
		step("set "+name+" to "+to, func(ctx context.Context, images ctrimages.Store) error {
			img := ctrimages.Image{Name: name, Target: roots[to]}
			_, err := images.Create(ctx, img)
			if errdefs.IsAlreadyExists(err) {
				_, err = images.Update(ctx, img, "target")
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
			step("delete "+name, func(ctx context.Context, images ctrimages.Store) error {
				if err := images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
					return err
				}
				return nil
			}, nil)
		case 6:
			step("remove the labels of "+name, func(ctx context.Context, images ctrimages.Store) error {
				_, err := images.Update(ctx, ctrimages.Image{Name: name, Labels: map[string]string{}}, "labels")
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
			step("restart", nil, func(real bool) error {
				if !real {
					model.restart(t)
					return nil
				}
				if err := n.Crash(); err != nil {
					return err
				}
				if err := n.Start(ctx); err != nil {
					return err
				}
				client = n.Client()
				return nil
			})
		}
	}
	if err := client.LeasesService().Delete(ctx, l); err != nil {
		t.Error(err)
	}
}
