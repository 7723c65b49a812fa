package imagepin

import (
	"fmt"

	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// inherit reads the configuration of containerd's CRI plugins, of its transfer service and of its metadata database. Their types are not public,
// so inherit converts the values in the plugin set through TOML.
func inherit(ic *plugin.InitContext) (config.CRI, error) {
	var c config.CRI
	if err := readSection(ic, plugins.CRIServicePlugin, "images", &c.Images); err != nil {
		return config.CRI{}, err
	}
	if err := readSection(ic, plugins.CRIServicePlugin, "runtime", &c.Runtime); err != nil {
		return config.CRI{}, err
	}
	if err := readSection(ic, plugins.MetadataPlugin, "bolt", &c.Metadata); err != nil {
		return config.CRI{}, err
	}
	if ic.Plugins().Get(plugins.TransferPlugin, "local") == nil {
		return c, nil // disabled, so its configuration does not apply
	}
	transfer := config.DefaultTransfer()
	if err := readSection(ic, plugins.TransferPlugin, "local", &transfer); err != nil {
		return config.CRI{}, err
	}
	c.Transfer = &transfer
	return c, nil
}

func readSection(ic *plugin.InitContext, of plugin.Type, id string, out any) error {
	p := ic.Plugins().Get(of, id)
	if p == nil {
		return fmt.Errorf("plugin %s.%s is not loaded", of, id)
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
