package runtimeplatform

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Isolation is how a Windows handler isolates containers from the node.
type Isolation string

const (
	// IsolationProcess shares the node's kernel. It is the default.
	IsolationProcess Isolation = "process"

	// IsolationHypervisor runs each pod with its own kernel, which may be older than the node's.
	IsolationHypervisor Isolation = "hypervisor"
)

// Handler is the configuration of one CRI runtime handler.
type Handler struct {
	// Name is the handler name that a RuntimeClass references.
	Name string

	// Platform is a specifier for [platforms.Parse], for example "linux/arm64" or "windows(10.0.17763)/amd64". Empty
	// means the node's own platform.
	Platform string

	// Snapshotter is the name of the snapshotter. It must not be empty.
	Snapshotter string

	// Isolation applies to Windows only. Empty means [IsolationProcess].
	Isolation Isolation
}

// Host describes the node. The zero value is the machine that the process runs on.
type Host struct {
	// Spec is the node's own platform, usually [platforms.DefaultSpec].
	Spec ocispec.Platform

	// Matcher selects the manifests that the node can run, usually
	// [platforms.Default]. If it is nil, [platforms.Only] of Spec is used.
	Matcher platforms.MatchComparer
}

// Runtime is a resolved handler.
type Runtime struct {
	// Handler is the handler's name.
	Handler string

	// Target is the target of the handler's images.
	Target Target

	// Spec is the handler's platform, normalized.
	Spec ocispec.Platform

	// Native is true if the handler selects images like the node itself: its platform is the node's own, by default or
	// by configuration. A handler with hypervisor isolation is never native, because it also accepts manifests that the
	// node's own matcher rejects.
	Native bool

	// Matcher selects manifests. Less orders manifests that match before those that do not, and the best first.
	Matcher platforms.MatchComparer
}

// withDefaults returns the host with defaults for all empty fields.
func (h Host) withDefaults() Host {
	if h.Spec.OS == "" {
		h.Spec = platforms.DefaultSpec()
		if h.Matcher == nil {
			h.Matcher = platforms.Default()
		}
	}
	h.Spec = platforms.Normalize(h.Spec)
	if h.Matcher == nil {
		h.Matcher = platforms.Only(h.Spec)
	}
	return h
}

// resolve validates h and resolves it for host.
func (h Handler) resolve(host Host) (Runtime, error) {
	invalid := func(key, value string, err error) (Runtime, error) {
		return Runtime{}, &ConfigError{Handler: h.Name, Key: key, Value: value, Err: err}
	}

	if h.Name == "" {
		return invalid(keyName, h.Name, errors.New("a handler must have a name"))
	}
	if h.Snapshotter == "" {
		return invalid(keySnapshotter, h.Snapshotter, errors.New("a handler must have a snapshotter"))
	}
	spec, err := h.platform(host)
	if err != nil {
		return invalid(keyPlatform, h.Platform, err)
	}
	isolation := h.Isolation
	switch isolation {
	case "":
		isolation = IsolationProcess
	case IsolationProcess:
	case IsolationHypervisor:
		if spec.OS != windows {
			return invalid(keyIsolation, string(isolation), fmt.Errorf("needs a Windows platform, not %s", platforms.FormatAll(spec)))
		}
	default:
		return invalid(keyIsolation, string(isolation), fmt.Errorf("must be %q or %q", IsolationProcess, IsolationHypervisor))
	}

	same := platforms.FormatAll(spec) == platforms.FormatAll(host.Spec)
	matcher := host.Matcher
	if !same {
		matcher = platforms.Only(spec)
	}
	if spec.OS == windows {
		matcher = newWindowsMatcher(matcher, spec.OSVersion, isolation)
	}
	return Runtime{
		Handler: h.Name,
		Target:  newTarget(spec, isolation, h.Snapshotter),
		Spec:    spec,
		Native:  same && isolation == IsolationProcess,
		Matcher: matcher,
	}, nil
}

// platform returns the normalized platform of h.
func (h Handler) platform(host Host) (ocispec.Platform, error) {
	if h.Platform == "" {
		return host.Spec, nil
	}
	spec, err := platforms.Parse(h.Platform)
	if err != nil {
		return ocispec.Platform{}, err
	}
	spec = platforms.Normalize(spec)

	// Images are recorded under the canonical text of the platform. Parse accepts platforms whose text is that of
	// another platform: the text of "linux/arm64/.." is "linux".
	text := platforms.FormatAll(spec)
	if again, err := platforms.Parse(text); err != nil || !reflect.DeepEqual(platforms.Normalize(again), spec) {
		return ocispec.Platform{}, fmt.Errorf("differs from its canonical form %q", text)
	}

	if spec.OS != windows {
		return spec, nil
	}
	if spec.OSVersion == "" {
		if host.Spec.OS == windows {
			spec.OSVersion = host.Spec.OSVersion
		}
		return spec, nil
	}
	// containerd treats an invalid version as any version, which is not what a configured version means.
	if _, ok := parseOSVersion(spec.OSVersion); !ok {
		return ocispec.Platform{}, fmt.Errorf("os.version %q is not of the form major.minor.build[.revision]", spec.OSVersion)
	}
	return spec, nil
}

// clone returns a copy of r that shares no mutable memory with it.
func (r Runtime) clone() Runtime {
	r.Spec.OSFeatures = slices.Clone(r.Spec.OSFeatures)
	return r
}
