package imagepin

import (
	"errors"
	"runtime"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/pelletier/go-toml/v2"
)

// CheckConfig checks, without a containerd, the plugins table of its
// config.toml: our section as strictly as it is when it is loaded, and whether
// its handlers are those of the CRI. Whether snapshotters are loaded is not
// known here. Errors are ErrInvalidArgument and name the section and the key.
func CheckConfig(plugins map[string]any) error {
	var own section
	if s, ok := plugins[Section]; ok {
		table, ok := s.(map[string]any)
		if !ok {
			return keyError("", errors.New("it is not a table"))
		}
		own = table
	}
	checked, err := own.check()
	if err != nil {
		return err
	}
	cri, err := offline(plugins)
	if err != nil {
		return err
	}
	anySnapshotter := func(string) bool { return true }
	_, err = cri.handlers(checked, anySnapshotter)
	return err
}

// runtimeSectionV2 has what runtimeSection has, in version 2 of the
// configuration.
const runtimeSectionV2 = "io.containerd.grpc.v1.cri"

// offline is the configuration of containerd's CRI plugins that is in a plugins
// table, over containerd's defaults as far as they matter here.
func offline(plugins map[string]any) (inherited, error) {
	var c inherited
	c.images.Snapshotter = defaults.DefaultSnapshotter
	handler := "runc"
	if runtime.GOOS == "windows" {
		handler = "runhcs-wcow-process"
	}
	c.runtime.Containerd.DefaultRuntimeName = handler
	c.runtime.Containerd.Runtimes = map[string]criHandler{handler: {}}
	for _, s := range []struct {
		name string
		into any
	}{
		{imagesSection, &c.images}, {runtimeSectionV2, &c.runtime}, {runtimeSection, &c.runtime},
	} {
		table, ok := plugins[s.name]
		if !ok {
			continue
		}
		b, err := toml.Marshal(table)
		if err != nil {
			return inherited{}, sectionError(s.name, "", err)
		}
		if err := toml.Unmarshal(b, s.into); err != nil {
			return inherited{}, sectionError(s.name, "", err)
		}
	}
	return c, nil
}
