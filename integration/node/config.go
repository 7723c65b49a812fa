package node

import (
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

var dialer net.Dialer

type table = map[string]any

const (
	imagesPlugin  = "io.containerd.cri.v1.images"
	runtimePlugin = "io.containerd.cri.v1.runtime"
)

// Sections that the configuration of imagepin serve needs too.
const (
	ownPlugin      = "io.containerd.imagepin.v1.images"
	verifierPlugin = "io.containerd.image-verifier.v1.bindir"
	metricsPlugin  = "io.containerd.server.v1.metrics"
)

// defaultSandboxImage is containerd's default.
const defaultSandboxImage = "registry.k8s.io/pause:3.10.2"

// configs returns the config.toml for a root and the configuration of imagepin serve, which is empty if the node has
// none.
func (o Options) configs(root string) (containerd, serve []byte, _ error) {
	c, err := o.config(root)
	if err != nil {
		return nil, nil, err
	}
	if _, binary := o.binaries(); binary != "" {
		plugins := c["plugins"].(table)
		images := maps.Clone(plugins[imagesPlugin].(table))
		if _, ok := images["pinned_images"]; !ok {
			images["pinned_images"] = table{"sandbox": defaultSandboxImage} // as in `containerd config dump`
		}
		b := table{
			"version": 3, "address": filepath.Join(root, "imagepin.sock"), "containerd_address": filepath.Join(root, "containerd.sock"),
			"state": filepath.Join(root, "imagepin"), "log_level": o.LogLevel,
			"debug":   table{"address": filepath.Join(root, "imagepin-debug.sock")},
			"plugins": table{imagesPlugin: images, verifierPlugin: plugins[verifierPlugin]},
		}
		if own, ok := plugins[ownPlugin]; ok {
			b["plugins"].(table)[ownPlugin] = own
			delete(plugins, ownPlugin)
		}
		if m, ok := plugins[metricsPlugin]; ok {
			b["metrics"] = m
			delete(plugins, metricsPlugin)
		}
		if err := merge(b, o.ServeExtra, root); err != nil {
			return nil, nil, fmt.Errorf("extra configuration of imagepin serve: %w", err)
		}
		if serve, err = toml.Marshal(b); err != nil {
			return nil, nil, err
		}
	}
	containerd, err = toml.Marshal(c)
	return containerd, serve, err
}

// config returns the config.toml for a root. All paths that containerd reads or writes are below the root.
func (o Options) config(root string) (table, error) {
	p := func(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }

	runtimes, runtimePlatforms := table{}, table{}
	for _, h := range append([]Handler{{Name: DefaultHandler}}, o.Handlers...) {
		r := table{
			"runtime_type": "io.containerd.runc.v2",
			"options":      table{"Root": p("runc")},
		}
		if o.NoPods {
			// Each start of containerd would run the shim and runc once for each handler, to ask for their features. That
			// takes longer than the rest of the start.
			r["runtime_path"] = p("no-shim")
		}
		if h.Snapshotter != "" {
			r["snapshotter"] = h.Snapshotter
		}
		if err := merge(r, h.Extra, root); err != nil {
			return nil, fmt.Errorf("handler %s: %w", h.Name, err)
		}
		runtimes[h.Name] = r
		delete(runtimePlatforms, h.Name)
		if h.Platform != "" {
			runtimePlatforms[h.Name] = table{"platform": h.Platform}
		}
	}

	hosts := make([]string, len(o.HostsDirs))
	for i, d := range o.HostsDirs {
		hosts[i] = p(d)
	}
	images := table{
		"snapshotter":             o.Snapshotter,
		"discard_unpacked_layers": o.DiscardUnpackedLayers,
		"registry":                table{"config_path": strings.Join(hosts, ":")},
	}
	if len(runtimePlatforms) > 0 {
		images["runtime_platforms"] = runtimePlatforms
	}
	if o.SandboxImage != "" {
		images["pinned_images"] = table{"sandbox": o.SandboxImage}
	}
	if o.StatsCollectPeriod != 0 {
		images["stats_collect_period"] = o.StatsCollectPeriod
	}

	c := table{
		"version": 3,
		"root":    p("root"),
		"state":   p("state"),
		"temp":    p("tmp"),
		"imports": []string{},
		"grpc":    table{"address": p("containerd.sock")},
		"ttrpc":   table{"address": p("containerd.sock.ttrpc")},
		"debug":   table{"address": p("debug.sock"), "level": o.LogLevel},
		"plugins": table{
			imagesPlugin: images,
			runtimePlugin: table{
				"restrict_oom_score_adj": RestrictsOOMScore(),
				"cdi_spec_dirs":          []string{p("cdi")},
				"containerd":             table{"default_runtime_name": DefaultHandler, "runtimes": runtimes},
				"cni":                    table{"bin_dirs": []string{p("cni", "bin")}, "conf_dir": p("cni", "conf")},
			},
			"io.containerd.grpc.v1.cri":     table{"disable_tcp_service": true},
			verifierPlugin:                  table{"bin_dir": p("verifiers")},
			"io.containerd.internal.v1.opt": table{"path": p("opt")},
			"io.containerd.nri.v1.nri":      table{"disable": true, "socket_path": p("nri.sock"), "plugin_path": p("nri"), "plugin_config_path": p("nri")},
			"io.containerd.shim.v1.manager": table{"socket_dir": p("s")},
		},
	}
	if len(o.DisabledPlugins) > 0 {
		c["disabled_plugins"] = o.DisabledPlugins
	}
	if err := merge(c, o.Extra, root); err != nil {
		return nil, fmt.Errorf("extra configuration: %w", err)
	}
	return c, nil
}

// merge merges TOML into a table. Values that are not tables replace those in dst.
func merge(dst table, text, root string) error {
	if text == "" {
		return nil
	}
	var src table
	if err := toml.Unmarshal([]byte(strings.ReplaceAll(text, "{root}", root)), &src); err != nil {
		return err
	}
	mergeTables(dst, src)
	return nil
}

func mergeTables(dst, src table) {
	for k, v := range src {
		s, isTable := v.(table)
		d, wasTable := dst[k].(table)
		if isTable && wasTable {
			mergeTables(d, s)
			continue
		}
		dst[k] = v
	}
}
