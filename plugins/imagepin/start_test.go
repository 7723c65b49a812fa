package imagepin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/plugin"

	"github.com/imagepin/imagepin/internal/blobcache"
	"github.com/imagepin/imagepin/internal/ctdtest"
)

// TestEndAfter checks that the cache of a start is in use until all is ready, or until the context ends.
func TestEndAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, canceled := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			first, second := make(chan struct{}), make(chan struct{})
			s := &start{blobs: blobcache.New(nil)}
			ended := false
			go func() { s.endAfter(ctx, first, second); ended = true }()
			close(first)
			if synctest.Wait(); ended {
				t.Error("the start has ended before all was ready")
			}
			if canceled {
				cancel()
			} else {
				close(second)
			}
			if synctest.Wait(); !ended {
				t.Errorf("the start has not ended (canceled: %v)", canceled)
			}
			cancel()
		}
	})
}

func TestWatchReadiness(t *testing.T) {
	reported := 0
	ic := plugin.NewContext(t.Context(), plugin.NewPluginSet(), nil)
	ic.RegisterReadiness = func() func() { return func() { reported++ } }
	isReady := func(ready <-chan struct{}) bool {
		select {
		case <-ready:
			return true
		default:
			return false
		}
	}

	inner, ready, created := watchReadiness(ic)
	report := inner.RegisterReadiness()
	created()
	if isReady(ready) {
		t.Error("ready before the plugin has reported it")
	}
	report()
	report()
	if !isReady(ready) || reported != 2 {
		t.Errorf("after the plugin has reported it twice: ready %v, %d reports", isReady(ready), reported)
	}

	_, ready, created = watchReadiness(ic)
	if isReady(ready) {
		t.Error("ready before the plugin is created")
	}
	if created(); !isReady(ready) {
		t.Error("a plugin that reports nothing is not ready when it is created")
	}
}

// TestCRIImagesHasCache checks what the CRI's image plugin is created with, and that it changes nothing for other plugins.
func TestCRIImagesHasCache(t *testing.T) {
	n := ctdtest.New(t)
	add := func(set *plugin.Set, kind plugin.Type, id string, instance any, fails error) {
		t.Helper()
		r := plugin.Registration{Type: kind, ID: id, InitFn: func(*plugin.InitContext) (any, error) { return instance, fails }}
		if err := set.Add(r.Init(plugin.NewContext(t.Context(), set, nil))); err != nil {
			t.Fatal(err)
		}
	}
	set := plugin.NewPluginSet()
	add(set, plugins.MetadataPlugin, "bolt", n.DB, nil)
	add(set, plugins.ServicePlugin, services.ContentService, n.DB.ContentStore(), nil)
	add(set, plugins.SnapshotPlugin, "skipped", nil, plugin.ErrSkipPlugin)
	ic := plugin.NewContext(t.Context(), set, map[string]string{"property": "value"})
	ic.Config = "config"

	s := &start{}
	_, err := s.criImages(func(inner *plugin.InitContext) (any, error) {
		got, err := inner.GetByID(plugins.ServicePlugin, services.ContentService)
		if err != nil || s.blobs == nil || got != content.Store(s.blobs) {
			t.Errorf("content service: got %T, %v, want the cache", got, err)
		}
		if db, err := inner.GetSingle(plugins.MetadataPlugin); db != n.DB || err != nil {
			t.Errorf("metadata: got %v, %v", db, err)
		}
		if p := inner.Plugins().Get(plugins.SnapshotPlugin, "skipped"); p == nil || !plugin.IsSkipPlugin(p.Err()) {
			t.Errorf("a plugin that was skipped: got %v", p)
		}
		if inner.Config != "config" || inner.Properties["property"] != "value" {
			t.Errorf("got configuration %v, properties %v", inner.Config, inner.Properties)
		}
		inner.Meta.Exports = map[string]string{"exported": "value"}
		return nil, nil
	})(ic)
	if err != nil {
		t.Fatal(err)
	}
	if ic.Meta.Exports["exported"] != "value" {
		t.Errorf("got exports %v", ic.Meta.Exports)
	}
	if got, _ := ic.GetByID(plugins.ServicePlugin, services.ContentService); got == content.Store(s.blobs) {
		t.Error("other plugins have the cache, too")
	}

	broken := errors.New("broken")
	failed := plugin.NewPluginSet()
	add(failed, plugins.ServicePlugin, services.ContentService, nil, broken)
	_, err = (&start{}).criImages(func(inner *plugin.InitContext) (any, error) {
		return inner.GetByID(plugins.ServicePlugin, services.ContentService)
	})(plugin.NewContext(t.Context(), failed, nil))
	if !errors.Is(err, broken) {
		t.Errorf("with a content service that failed: got %v, want %v", err, broken)
	}
}
