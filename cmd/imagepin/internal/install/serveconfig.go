//go:build unix

package install

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/imagepin/imagepin/pkg/imagepin/config"
)

// copied are the sections of containerd's configuration that imagepin serve reads and containerd does not report.
var copied = []string{config.ImagesSection, config.VerifierSection}

// serveConfig returns the configuration that imagepin serve will have: the one that the operator has given or that the node
// has, or else the default with the sections of containerd's configuration. pid is that of containerd.
func serveConfig(ctx context.Context, t *target, pid int) (*config.ServeConfig, error) {
	if t.keep {
		now, err := os.ReadFile(configFile)
		switch {
		case err == nil:
			t.content = now
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		default:
			if t.content, err = withContainerdConfig(ctx, t.content, pid); err != nil {
				return nil, fmt.Errorf("configuration of containerd: %w: write one for imagepin serve, and add --config", err)
			}
		}
	}
	c, err := config.ParseFile(t.content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configFile, err)
	}
	return c, nil
}

// withContainerdConfig adds sections of the running containerd's configuration to the default configuration. It runs
// "containerd config dump" with the arguments of the process.
func withContainerdConfig(ctx context.Context, defaults []byte, pid int) ([]byte, error) {
	args, err := commandLine(pid)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, fmt.Sprintf("/proc/%d/exe", pid), append(args[1:], "config", "dump")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dump, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s config dump: %w: %s", args[0], err, lastLine(stderr.Bytes()))
	}
	return addSections(defaults, dump)
}

// addSections replaces the empty sections at the end of a configuration by those of a dump.
func addSections(text, dump []byte) ([]byte, error) {
	var all struct {
		Plugins map[string]any `toml:"plugins"`
	}
	if err := toml.Unmarshal(dump, &all); err != nil {
		return nil, err
	}
	kept := make(map[string]any)
	for _, name := range copied {
		if section, ok := all.Plugins[name]; ok {
			kept[name] = section
		}
	}
	sections, err := toml.Marshal(map[string]any{"plugins": kept})
	if err != nil {
		return nil, err
	}
	header := fmt.Sprintf("[plugins.%q]\n", config.ImagesSection)
	before, _, ok := strings.Cut(string(text), header)
	if !ok {
		return nil, fmt.Errorf("the default configuration has no %s", strings.TrimSpace(header))
	}
	return append([]byte(before), sections...), nil
}

// searchPath returns the PATH of a process, without the directory of imagepin.
func searchPath(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return "", err
	}
	for v := range strings.SplitSeq(string(b), "\x00") {
		if path, ok := strings.CutPrefix(v, "PATH="); ok {
			path = strings.TrimPrefix(path, binDir+":")
			return cmp.Or(path, defaultSearchPath), nil
		}
	}
	return defaultSearchPath, nil
}

const defaultSearchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// commandLine returns the arguments of a process, with its name.
func commandLine(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	return strings.Split(strings.TrimRight(string(b), "\x00"), "\x00"), nil
}
