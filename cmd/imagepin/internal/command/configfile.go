package command

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/version"
	"github.com/pelletier/go-toml/v2"
)

// config is the part of containerd's config.toml that is checked. containerd's own type is in a package that is not
// stable.
type config struct {
	Version         int              `toml:"version"`
	Imports         []string         `toml:"imports"`
	DisabledPlugins []string         `toml:"disabled_plugins"`
	Plugins         map[string]any   `toml:"plugins"`
	ProxyPlugins    map[string]proxy `toml:"proxy_plugins"`

	// origins has the file that last set a value, by section and key with dots.
	origins map[string]string
	path    string // the first file
}

// proxy is a plugin in another process.
type proxy struct {
	Type string `toml:"type"`
}

// snapshotterProxies returns the names of the snapshotters in other processes.
func (c *config) snapshotterProxies() (names []string) {
	for name, p := range c.ProxyPlugins {
		if p.Type == "snapshot" {
			names = append(names, name)
		}
	}
	return names
}

// fileOf returns the file that last set a key of a section, or the nearest table around it.
func (c *config) fileOf(section, key string) string {
	for where := section + "." + key; where != ""; {
		if file, ok := c.origins[where]; ok {
			return file
		}
		where = where[:max(strings.LastIndexAny(where, ".["), 0)]
	}
	return c.path
}

// loadConfig reads a file and its imports, each once, and merges them as containerd does
// (cmd/containerd/server/config): later files take precedence, tables are merged by key, other values are replaced.
func loadConfig(path string) (*config, error) {
	merged := &config{Plugins: make(map[string]any), ProxyPlugins: make(map[string]proxy), origins: make(map[string]string), path: path}
	read := make(map[string]bool)
	for pending := []string{path}; len(pending) > 0; {
		next := pending[0]
		pending = pending[1:]
		if read[next] {
			continue
		}
		read[next] = true
		c, err := readConfig(next)
		if err != nil {
			return nil, err
		}
		imports, err := importedFiles(next, c.Imports)
		if err != nil {
			return nil, fmt.Errorf("%s: imports: %w", next, err)
		}
		pending = append(pending, imports...)
		merged.DisabledPlugins = append(merged.DisabledPlugins, c.DisabledPlugins...)
		merge(merged.Plugins, c.Plugins)
		maps.Copy(merged.ProxyPlugins, c.ProxyPlugins)
		for section, table := range c.Plugins {
			merged.setOrigins(section, table, next)
		}
	}
	return merged, nil
}

// setOrigins records that a file sets a value. where is its section and key.
func (c *config) setOrigins(where string, value any, file string) {
	c.origins[where] = file
	table, _ := value.(map[string]any)
	for key, value := range table {
		c.setOrigins(where+"."+key, value, file)
	}
}

func readConfig(path string) (*config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var c config
	err = toml.Unmarshal(b, &c)
	var decode *toml.DecodeError
	switch {
	case errors.As(err, &decode):
		row, column := decode.Position()
		return nil, fmt.Errorf("%s:%d:%d: %w", path, row, column, err)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case c.Version > version.ConfigVersion:
		return nil, fmt.Errorf("%s: version %d is newer than the newest supported version %d", path, c.Version, version.ConfigVersion)
	}
	return &c, nil
}

// importedFiles resolves imports, which are relative to the importing file and may be globs.
func importedFiles(from string, imports []string) ([]string, error) {
	var files []string
	for _, path := range imports {
		if !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(from), path)
		}
		if !strings.Contains(path, "*") {
			files = append(files, filepath.Clean(path))
			continue
		}
		matches, err := filepath.Glob(path)
		if err != nil {
			return nil, err
		}
		files = append(files, matches...)
	}
	return files, nil
}

// merge merges from into to.
func merge(to, from map[string]any) {
	for key, value := range from {
		table, isTable := value.(map[string]any)
		old, wasTable := to[key].(map[string]any)
		if isTable && wasTable {
			merge(old, table)
			continue
		}
		to[key] = value
	}
}
