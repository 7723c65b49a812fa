package imagepin

import (
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/containerd/v2/plugins/services"
	"github.com/containerd/plugin"

	"github.com/imagepin/imagepin/internal/blobcache"
)

// criImages creates containerd's CRI image plugin with a content service that reads each manifest once, until the CRI is
// ready. When it starts, the CRI checks each record of an image, and an image has three. Nothing else uses that service:
// the CRI serves no calls before it is ready, and other plugins have containerd's own.
func (s *start) criImages(upstream initFunc) initFunc {
	return func(ic *plugin.InitContext) (any, error) {
		inner, err := withContent(ic, func(store content.Store) content.Store {
			s.blobs = blobcache.New(store)
			return s.blobs
		})
		if err != nil {
			return nil, fmt.Errorf("imagepin: %w", err)
		}
		return upstream(inner)
	}
}

// withContent returns an init context like ic with another content service. It returns ic if that has no content service.
func withContent(ic *plugin.InitContext, wrap func(content.Store) content.Store) (*plugin.InitContext, error) {
	set := plugin.NewPluginSet()
	found := false
	for _, p := range ic.Plugins().GetAll() {
		if p.Registration.Type == plugins.ServicePlugin && p.Registration.ID == services.ContentService && p.Err() == nil {
			instance, err := p.Instance()
			if err != nil {
				return nil, err
			}
			store, ok := instance.(content.Store)
			if !ok {
				return nil, fmt.Errorf("%s is a %T, not a content store", p.Registration.URI(), instance)
			}
			replaced := p.Registration
			replaced.InitFn = func(*plugin.InitContext) (any, error) { return wrap(store), nil }
			p, found = replaced.Init(plugin.NewContext(ic.Context, plugin.NewPluginSet(), nil)), true
		}
		if err := set.Add(p); err != nil {
			return nil, err
		}
	}
	if !found {
		return ic, nil
	}
	inner := plugin.NewContext(ic.Context, set, ic.Properties)
	inner.Config, inner.RegisterReadiness, inner.Meta = ic.Config, ic.RegisterReadiness, ic.Meta
	return inner, nil
}
