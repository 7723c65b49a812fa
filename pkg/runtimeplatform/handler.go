package runtimeplatform

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Isolation is how a Windows handler separates containers from the node.
type Isolation string

const (
	// IsolationProcess shares the node's kernel. It is the default.
	IsolationProcess Isolation = "process"

	// IsolationHypervisor runs each pod on a kernel of its own, which may be
	// older than the node's.
	IsolationHypervisor Isolation = "hypervisor"
)

// Handler is one configured CRI runtime handler.
type Handler struct {
	// Name is what a RuntimeClass refers to.
	Name string

	// Platform is a specifier as [platforms.Parse] reads it, for example
	// "linux/arm64" or "windows(10.0.17763)/amd64". Empty is the node's own.
	Platform string

	// Snapshotter is the name of the snapshotter, never empty.
	Snapshotter string

	// Isolation is meaningful on Windows only. Empty is [IsolationProcess].
	Isolation Isolation
}

// Host describes the node. The zero Host is the machine the process runs on.
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

	// Target is what the handler's images are made ready for.
	Target Target

	// Spec is the handler's platform, normalized.
	Spec ocispec.Platform

	// Native reports whether images are selected as the node itself does:
	// the platform is the node's own, left out or spelled out. A handler with
	// hypervisor isolation is never native, because it also accepts
	// manifests that the node's own matcher does not.
	Native bool

	// Matcher selects among manifests. Less puts every manifest that matches
	// before those that do not, and the best of them first.
	Matcher platforms.MatchComparer
}

// withDefaults returns the host with nothing left to be filled in.
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

// resolve checks h and returns what it comes to on host.
func (h Handler) resolve(host Host) (Runtime, error) {
	invalid := func(key, value string, err error) (Runtime, error) {
		return Runtime{}, &ConfigError{Handler: h.Name, Key: key, Value: value, Err: err}
	}

	if h.Name == "" {
		return invalid(keyName, h.Name, errors.New("a handler needs a name"))
	}
	if h.Snapshotter == "" {
		return invalid(keySnapshotter, h.Snapshotter, errors.New("a handler needs a snapshotter"))
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

	// The text is the key under which images are recorded, and Parse accepts
	// platforms that have none of their own: "linux/arm64/.." is written as
	// "linux".
	text := platforms.FormatAll(spec)
	if again, err := platforms.Parse(text); err != nil || !reflect.DeepEqual(platforms.Normalize(again), spec) {
		return ocispec.Platform{}, fmt.Errorf("would be read back differently from its canonical text %q", text)
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
	// containerd takes a version it cannot read for "any", which is not what
	// someone who wrote one had in mind.
	if _, ok := parseOSVersion(spec.OSVersion); !ok {
		return ocispec.Platform{}, fmt.Errorf("os.version %q is not of the form major.minor.build[.revision]", spec.OSVersion)
	}
	return spec, nil
}

// clone returns r sharing no memory that could be written to.
func (r Runtime) clone() Runtime {
	r.Spec.OSFeatures = slices.Clone(r.Spec.OSFeatures)
	return r
}
