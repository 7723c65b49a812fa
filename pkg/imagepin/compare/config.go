package compare

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Field is a field of the configuration that differs. From and To are nil if there is no such field.
type Field struct {
	// Name is that of the field in imagepin's API: user, working_dir, entrypoint, cmd, stop_signal, "env NAME", "label
	// NAME", "exposed_port PORT" or "volume PATH".
	Name     string
	From, To *string
}

// compareConfig returns the fields that differ, in a stable order.
func compareConfig(from, to ocispec.ImageConfig) []Field {
	before, after := fields(from), fields(to)
	names := make(map[string]bool)
	for _, all := range []map[string]string{before, after} {
		for name := range all {
			names[name] = true
		}
	}
	var changed []Field
	for _, name := range slices.Sorted(maps.Keys(names)) {
		a, inBefore := before[name]
		b, inAfter := after[name]
		if inBefore == inAfter && a == b {
			continue
		}
		f := Field{Name: name}
		if inBefore {
			f.From = &a
		}
		if inAfter {
			f.To = &b
		}
		changed = append(changed, f)
	}
	return changed
}

// fields returns the fields that are set. If a variable is set several times, the last counts.
func fields(c ocispec.ImageConfig) map[string]string {
	all := make(map[string]string)
	for name, value := range map[string]string{"user": c.User, "working_dir": c.WorkingDir, "stop_signal": c.StopSignal} {
		if value != "" {
			all[name] = value
		}
	}
	for name, words := range map[string][]string{"entrypoint": c.Entrypoint, "cmd": c.Cmd} {
		if len(words) > 0 {
			all[name] = asJSON(words)
		}
	}
	for _, variable := range c.Env {
		name, value, _ := strings.Cut(variable, "=")
		all["env "+name] = value
	}
	for name, value := range c.Labels {
		all["label "+name] = value
	}
	for port := range c.ExposedPorts {
		all["exposed_port "+port] = ""
	}
	for path := range c.Volumes {
		all["volume "+path] = ""
	}
	return all
}

// asJSON returns words as JSON, with the characters of a shell as they are.
func asJSON(words []string) string {
	var text strings.Builder
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	_ = e.Encode(words) // strings and a builder have no error
	return strings.TrimSuffix(text.String(), "\n")
}
