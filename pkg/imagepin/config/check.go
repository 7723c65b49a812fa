package config

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"

	"github.com/containerd/containerd/v2/defaults"
	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/internal/similar"
	"github.com/imagepin/imagepin/internal/upstream"
)

// CheckPlugins checks the plugins table of containerd's config.toml without a running containerd. It checks the
// imagepin section as strictly as containerd does when it loads the plugin, whether the handlers in it are handlers
// of the CRI, and whether their snapshotters and platforms exist: a snapshotter is built into containerd, or is one of
// proxies. It returns the settings of the imagepin section, and warnings about platforms that this machine cannot run, and about a database that is not synced. It
// returns the errors of all keys, see [Errors]. They are ErrInvalidArgument and name the section and the key.
func CheckPlugins(plugins map[string]any, proxies []string) (checked Settings, warnings []string, _ error) {
	var own Table
	if s, ok := plugins[Section]; ok {
		table, ok := s.(map[string]any)
		if !ok {
			return Settings{}, nil, keyError("", errors.New("must be a table"))
		}
		own = table
	}
	checked, wrong := own.Check()
	cri, err := offlineCRI(plugins)
	if err != nil {
		return Settings{}, nil, errors.Join(wrong, err)
	}
	anySnapshotter := func(string) bool { return true }
	_, err = cri.Handlers(checked, anySnapshotter)
	unknown := append(cri.unknownSnapshotters(proxies), cri.Images.UnknownPlatforms()...)
	warnings = cri.emulatedPlatforms(binfmt)
	if w := cri.Unsynced(checked); w != "" {
		warnings = append(warnings, w)
	}
	return checked, warnings, errors.Join(append([]error{wrong, err}, unknown...)...)
}

// unknownSnapshotters returns an error for each key that names a snapshotter that is neither built into containerd nor one of
// proxies.
func (c CRI) unknownSnapshotters(proxies []string) (errs []error) {
	known := slices.Concat(upstream.Snapshotters, proxies)
	check := func(section, key, name string) {
		if name == "" || slices.Contains(known, name) {
			return
		}
		text := fmt.Sprintf("snapshotter %q is neither built into containerd nor in proxy_plugins", name)
		if meant := similar.Closest(name, known); meant != "" {
			text += fmt.Sprintf(" (did you mean %q?)", meant)
		}
		errs = append(errs, sectionError(section, key, errors.New(text)))
	}
	check(ImagesSection, "snapshotter", c.Images.Snapshotter)
	for _, name := range slices.Sorted(maps.Keys(c.Runtime.Containerd.Runtimes)) {
		check(runtimeSection, "containerd.runtimes."+name+".snapshotter", c.Runtime.Containerd.Runtimes[name].Snapshotter)
	}
	return errs
}

// offlineCRI reads the configuration of containerd's CRI plugins and metadata database from a plugins table. Keys that are not in the table
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
		{ImagesSection, &c.Images}, {CRISection, &c.Runtime}, {runtimeSection, &c.Runtime}, {metadataSection, &c.Metadata},
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
