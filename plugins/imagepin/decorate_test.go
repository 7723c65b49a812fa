package imagepin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
	"github.com/imagepin/imagepin/pkg/imagepin/node"
)

// only replaces the registered plugins for the length of a test.
func only(t *testing.T, registrations ...*plugin.Registration) {
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

func TestOurPluginIsRegistered(t *testing.T) {
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
		InitFn: func(*plugin.InitContext) (any, error) { called++; return "theirs", nil },
	}
	other := &plugin.Registration{
		Type: plugins.GRPCPlugin, ID: "other",
		InitFn: func(*plugin.InitContext) (any, error) { return "other", nil },
	}
	only(t, other, cri)
	if err := Decorate(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(cri.Requires, Type) || !slices.Contains(cri.Requires, plugins.CRIServicePlugin) || len(requires) != 1 {
		t.Errorf("the CRI requires %v", cri.Requires)
	}
	if len(other.Requires) != 0 {
		t.Error("another plugin was decorated")
	}

	// With our plugin disabled the CRI is containerd's own.
	ic := plugin.NewContext(t.Context(), plugin.NewPluginSet(), nil)
	got, err := cri.InitFn(ic)
	if got != "theirs" || err != nil || called != 1 {
		t.Errorf("disabled: %v, %v, %d calls", got, err, called)
	}

	registry.Reset()
	registry.Register(other)
	if err := Decorate(); err == nil || !strings.Contains(err.Error(), "cri") {
		t.Errorf("without a CRI plugin: %v", err)
	}
}

// ourPlugin is a plugin set in which our plugin is loaded, or failed to.
func ourPlugin(t *testing.T, instance any, fails error) *plugin.InitContext {
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
	_, err := decorated(never)(ourPlugin(t, nil, broken))
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), config.Section) || !strings.Contains(err.Error(), "disabled_plugins") {
		t.Errorf("with a plugin that failed: %v", err)
	}

	fails := func(*plugin.InitContext) (any, error) { return nil, broken }
	if _, err := decorated(fails)(ourPlugin(t, &node.Node{}, nil)); !errors.Is(err, broken) {
		t.Errorf("with a CRI that fails: %v", err)
	}

	none := func(*plugin.InitContext) (any, error) { return "no service", nil }
	if _, err := decorated(none)(ourPlugin(t, &node.Node{}, nil)); err == nil || !strings.Contains(err.Error(), "string") {
		t.Errorf("with a CRI that has no service: %v", err)
	}
}
