package imagepin

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// replacePlugins replaces the registered plugins during a test.
func replacePlugins(t *testing.T, registrations ...*plugin.Registration) {
	t.Helper()
	var before []*plugin.Registration
	registry.Graph(func(r *plugin.Registration) bool {
		before = append(before, r)
		return true
	})
	put := func(all []*plugin.Registration) {
		registry.Reset()
		for _, r := range all {
			registry.Register(r)
		}
	}
	put(registrations)
	t.Cleanup(func() { put(before) })
}

func TestPluginIsRegistered(t *testing.T) {
	found := false
	registry.Graph(func(r *plugin.Registration) bool {
		found = found || r.Type == Type && r.ID == ID && r.URI() == config.Section
		return true
	})
	if !found {
		t.Errorf("%s is not registered", config.Section)
	}
}

func TestDecorate(t *testing.T) {
	called := 0
	requires := []plugin.Type{plugins.CRIServicePlugin}
	cri := &plugin.Registration{
		Type: plugins.GRPCPlugin, ID: criPlugin, Requires: requires,
		InitFn: func(*plugin.InitContext) (any, error) { called++; return "original", nil },
	}
	other := &plugin.Registration{
		Type: plugins.GRPCPlugin, ID: "other",
		InitFn: func(*plugin.InitContext) (any, error) { return "other", nil },
	}
	replacePlugins(t, other, cri)
	if err := Decorate(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(cri.Requires, Type) || !slices.Contains(cri.Requires, plugins.CRIServicePlugin) || len(requires) != 1 {
		t.Errorf("unexpected requirements of the CRI: %v", cri.Requires)
	}
	if len(other.Requires) != 0 {
		t.Error("Decorate changed another plugin")
	}

	// If the imagepin plugin is disabled, containerd's CRI is unchanged.
	ic := plugin.NewContext(t.Context(), plugin.NewPluginSet(), nil)
	got, err := cri.InitFn(ic)
	if got != "original" || err != nil || called != 1 {
		t.Errorf("disabled: got %v, %v, %d calls, want original, 1", got, err, called)
	}

	registry.Reset()
	registry.Register(other)
	if err := Decorate(); err == nil || !strings.Contains(err.Error(), "cri") {
		t.Errorf("without a CRI plugin: got %v, want an error", err)
	}
}

// contextWithPlugin returns an init context with the imagepin plugin, which is loaded or failed to load.
func contextWithPlugin(t *testing.T, instance any, fails error) *plugin.InitContext {
	t.Helper()
	set := plugin.NewPluginSet()
	r := plugin.Registration{Type: Type, ID: ID, InitFn: func(*plugin.InitContext) (any, error) { return instance, fails }}
	if err := set.Add(r.Init(plugin.NewContext(t.Context(), set, nil))); err != nil {
		t.Fatal(err)
	}
	return plugin.NewContext(context.Background(), set, nil)
}

func TestDecorated(t *testing.T) {
	broken := errors.New("broken")
	never := func(*plugin.InitContext) (any, error) { t.Error("the CRI was started"); return nil, nil }
	_, err := (&start{}).decorated(never)(contextWithPlugin(t, nil, broken))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), config.Section) || !strings.Contains(err.Error(), "disabled_plugins") {
		t.Errorf("with a plugin that failed: got %v, want %v", err, broken)
	}
}

// newTestNode returns a node with one snapshotter, called first, which is snapshotter unless that is nil.
func newTestNode(t *testing.T, snapshotter snapshots.Snapshotter) *node.Node {
	t.Helper()
	table, err := config.DefaultTable()
	if err != nil {
		t.Fatal(err)
	}
	settings, err := table.Check()
	if err != nil {
		t.Fatal(err)
	}
	inherited := config.CRI{Images: config.Images{Snapshotter: "first", ImagePullProgressTimeout: "5m"}}
	inherited.Runtime.Containerd.DefaultRuntimeName = "runc"
	inherited.Runtime.Containerd.Runtimes = map[string]config.Handler{"runc": {}}
	c := ctdtest.New(t, "first")
	n, err := node.New(node.Config{
		Containerd: node.Containerd{
			Records: newRecords(c.DB, c.Events), Pins: metadata.NewImageStore(c.DB), Content: c.Content, Leases: c.Leases,
			Namespaces: ctdtest.Namespaces{DB: c.DB}, Events: c.Events,
			Snapshots: func(name string) snapshots.Snapshotter {
				if snapshotter != nil {
					return snapshotter
				}
				return c.Snapshotter(name)
			},
		},
		Setup:   node.Setup{Settings: settings, CRI: inherited, Snapshotters: map[string]node.Snapshotter{"first": {Root: t.TempDir()}}},
		NodeKey: filepath.Join(t.TempDir(), "key"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDecoratedCRIFails(t *testing.T) {
	broken := errors.New("broken")
	fails := func(*plugin.InitContext) (any, error) { return nil, broken }
	if _, err := (&start{}).decorated(fails)(contextWithPlugin(t, newTestNode(t, nil), nil)); !errors.Is(err, broken) {
		t.Errorf("with a CRI that fails: got %v, want %v", err, broken)
	}
	none := func(*plugin.InitContext) (any, error) { return "no service", nil }
	if _, err := (&start{}).decorated(none)(contextWithPlugin(t, newTestNode(t, nil), nil)); err == nil || !strings.Contains(err.Error(), "string") {
		t.Errorf("with a CRI that has no service: got %v, want an error with its type", err)
	}
}

// walkedSnapshotter closes walked when it is walked, and then hangs if hang is set.
type walkedSnapshotter struct {
	snapshots.Snapshotter
	walked chan struct{}
	hang   bool
}

func (w *walkedSnapshotter) Walk(ctx context.Context, _ snapshots.WalkFunc, _ ...string) error {
	close(w.walked)
	if w.hang {
		<-ctx.Done()
	}
	return ctx.Err()
}

func TestIndexIsBuiltBeforeCRIStarts(t *testing.T) {
	for name, hang := range map[string]bool{"quick": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			w := &walkedSnapshotter{walked: make(chan struct{}), hang: hang}
			upstream := &fakeCRI{}
			begin := func(*plugin.InitContext) (any, error) {
				select {
				case <-w.walked:
				default:
					t.Error("the CRI started before the snapshotter was walked")
				}
				return upstream, nil
			}
			got, err := (&start{}).decorated(begin)(contextWithPlugin(t, newTestNode(t, w), nil))
			if err != nil {
				t.Fatal(err)
			}
			front := got.(*front)
			select {
			case <-front.service.Ready():
				if hang {
					t.Error("the index was built while its snapshotter hangs")
				}
			default:
				if !hang {
					t.Error("the CRI started before the index was built")
				}
			}
			if err := front.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
