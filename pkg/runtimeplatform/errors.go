package runtimeplatform

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// The values of [ConfigError].Key: the part of the configuration that is wrong.
const (
	keyName           = "name"
	keyPlatform       = "platform"
	keySnapshotter    = "snapshotter"
	keyIsolation      = "isolation"
	keyDefaultRuntime = "default_runtime_name"
)

// ConfigError says which handler and which key of it [New] cannot accept. It is
// an [errdefs.ErrInvalidArgument].
type ConfigError struct {
	// Handler is the name of the handler.
	Handler string

	// Key is "platform", "snapshotter", "isolation", "default_runtime_name",
	// or, for a handler whose name is empty or taken, "name".
	Key string

	// Value is what was configured.
	Value string

	// Err is what is wrong with it.
	Err error
}

func (e *ConfigError) Error() string {
	if e.Key == keyDefaultRuntime {
		return fmt.Sprintf("%s %q: %v", e.Key, e.Value, e.Err)
	}
	return fmt.Sprintf("runtime handler %q: %s %q: %v", e.Handler, e.Key, e.Value, e.Err)
}

// Unwrap returns Err.
func (e *ConfigError) Unwrap() error { return e.Err }

// Is reports whether target is [errdefs.ErrInvalidArgument].
func (e *ConfigError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// UnknownHandlerError says that a handler is not configured on this node. It is
// an [errdefs.ErrInvalidArgument].
type UnknownHandlerError struct {
	// Handler is the name that was asked for.
	Handler string

	// Known are the names of the configured handlers, sorted.
	Known []string
}

func (e *UnknownHandlerError) Error() string {
	return fmt.Sprintf("unknown runtime handler %q: this node has %s", e.Handler, quoted(e.Known))
}

// Is reports whether target is [errdefs.ErrInvalidArgument].
func (e *UnknownHandlerError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// quoted lists names for an error message.
func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, name := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", name)
	}
	return b.String()
}
