package command

import (
	"fmt"
	"os"
	"slices"

	"github.com/pelletier/go-toml/v2"
)

// Keys outside of the sections that only one of the programs has.
var (
	containerdKeys = []string{
		"root", "temp", "grpc", "ttrpc", "disabled_plugins", "required_plugins", "oom_score", "cgroup", "proxy_plugins",
		"timeouts", "imports", "stream_processors", "plugin_dir",
	}
	serveKeys = []string{"address", "containerd_address", "log_level"}
)

// checkKind fails if a file is the configuration of the other program: it has keys that only that one has. A file with
// keys of both, or of neither, is not recognized. Errors of reading and parsing are left to the caller.
func checkKind(path string, serve bool) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var keys map[string]any
	if err := toml.Unmarshal(b, &keys); err != nil {
		return nil
	}
	ofContainerd, ofServe := firstOf(keys, containerdKeys), firstOf(keys, serveKeys)
	switch {
	case serve && ofContainerd != "" && ofServe == "":
		return fmt.Errorf("%s: this is a configuration of containerd, because it has the key %q\nCheck it without --serve: imagepin config check %s", path, ofContainerd, path)
	case !serve && ofServe != "" && ofContainerd == "":
		return fmt.Errorf("%s: this is a configuration of imagepin serve, because it has the key %q\nCheck it with --serve: imagepin config check --serve %s", path, ofServe, path)
	}
	return nil
}

// firstOf returns the first of some keys that a table has, or "".
func firstOf(table map[string]any, keys []string) string {
	if i := slices.IndexFunc(keys, func(k string) bool { _, ok := table[k]; return ok }); i >= 0 {
		return keys[i]
	}
	return ""
}
