package runtimeplatform

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// The values of [ConfigError].Key.
const (
	keyName           = "name"
	keyPlatform       = "platform"
	keySnapshotter    = "snapshotter"
	keyIsolation      = "isolation"
	keyDefaultRuntime = "default_runtime_name"
)

// ConfigError is the error of [New] for an invalid handler. It is an [errdefs.ErrInvalidArgument].
type ConfigError struct {
	// Handler is the name of the handler.
	Handler string

	// Key is the invalid setting: "platform", "snapshotter", "isolation", "default_runtime_name", or "name" if the name
	// is empty or a duplicate.
	Key string

	// Value is the configured value.
	Value string

	// Err is the reason.
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

// UnknownHandlerError means that a handler is not configured on this node. It is an [errdefs.ErrInvalidArgument].
type UnknownHandlerError struct {
	// Handler is the requested name.
	Handler string

	// Known are the names of the configured handlers, sorted.
	Known []string
}

func (e *UnknownHandlerError) Error() string {
	return fmt.Sprintf("unknown runtime handler %q: this node has %s", e.Handler, quoted(e.Known))
}

// Is reports whether target is [errdefs.ErrInvalidArgument].
func (e *UnknownHandlerError) Is(target error) bool { return target == errdefs.ErrInvalidArgument }

// quoted formats names for an error message.
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
