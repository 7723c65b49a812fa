package imagepin

import (
	"fmt"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// inherit reads the configuration of containerd's CRI plugins. Their types are
// not public: what the plugin set holds is taken through TOML.
func inherit(ic *plugin.InitContext) (config.CRI, error) {
	var c config.CRI
	if err := readSection(ic, "images", &c.Images); err != nil {
		return config.CRI{}, err
	}
	if err := readSection(ic, "runtime", &c.Runtime); err != nil {
		return config.CRI{}, err
	}
	return c, nil
}

func readSection(ic *plugin.InitContext, id string, out any) error {
	p := ic.Plugins().Get(plugins.CRIServicePlugin, id)
	if p == nil {
		return fmt.Errorf("plugin %s.%s is not loaded", plugins.CRIServicePlugin, id)
	}
	b, err := toml.Marshal(p.Config)
	if err != nil {
		return fmt.Errorf("read the configuration of %s: %w", p.Registration.URI(), err)
	}
	if err := toml.Unmarshal(b, out); err != nil {
		return fmt.Errorf("read the configuration of %s: %w", p.Registration.URI(), err)
	}
	return nil
}
