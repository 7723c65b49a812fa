package config

import (
	"errors"
	"runtime"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/pelletier/go-toml/v2"
)

// CheckPlugins checks the plugins table of containerd's config.toml without a running containerd. It checks the
// imagepin section as strictly as containerd does when it loads the plugin, and whether the handlers in it are handlers
// of the CRI. It does not check whether snapshotters are loaded. It returns the settings of the imagepin section.
// It returns the errors of all keys of the imagepin section, see [Errors]. They are ErrInvalidArgument and name the section
// and the key.
func CheckPlugins(plugins map[string]any) (Settings, error) {
	var own Table
	if s, ok := plugins[Section]; ok {
		table, ok := s.(map[string]any)
		if !ok {
			return Settings{}, keyError("", errors.New("must be a table"))
		}
		own = table
	}
	checked, wrong := own.Check()
	cri, err := offlineCRI(plugins)
	if err != nil {
		return Settings{}, errors.Join(wrong, err)
	}
	anySnapshotter := func(string) bool { return true }
	_, err = cri.Handlers(checked, anySnapshotter)
	return checked, errors.Join(wrong, err)
}

// runtimeSectionV2 is the name of RuntimeSection in version 2 of the configuration.
const runtimeSectionV2 = "io.containerd.grpc.v1.cri"

// offlineCRI reads the configuration of containerd's CRI plugins from a plugins table. Keys that are not in the table
// have containerd's defaults, as far as they matter here.
func offlineCRI(plugins map[string]any) (CRI, error) {
	var c CRI
	c.Images.Snapshotter = defaults.DefaultSnapshotter
	handler := "runc"
	if runtime.GOOS == "windows" {
		handler = "runhcs-wcow-process"
	}
	c.Runtime.Containerd.DefaultRuntimeName = handler
	c.Runtime.Containerd.Runtimes = map[string]Handler{handler: {}}
	for _, s := range []struct {
		name string
		into any
	}{
		{ImagesSection, &c.Images}, {runtimeSectionV2, &c.Runtime}, {RuntimeSection, &c.Runtime},
	} {
		table, ok := plugins[s.name]
		if !ok {
			continue
		}
		b, err := toml.Marshal(table)
		if err != nil {
			return CRI{}, sectionError(s.name, "", err)
		}
		if err := toml.Unmarshal(b, s.into); err != nil {
			return CRI{}, sectionError(s.name, "", err)
		}
	}
	return c, nil
}
