package runtimeplatform

import (
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Target is what an image is made ready for. It is comparable and may be the
// key of a map.
type Target struct {
	// Platform is the canonical text of the platform, as
	// [platforms.FormatAll] writes the normalized one, for example
	// "linux/arm/v7". A platform with hypervisor isolation selects other
	// manifests than the same one without, so "@hypervisor" is appended to
	// it: "windows(10.0.20348)/amd64@hypervisor". Use [Runtime].Spec for
	// the platform itself.
	Platform string

	// Snapshotter is the name of the snapshotter that images are unpacked by.
	Snapshotter string
}

// String returns the target for logs and messages: "linux/arm64 on native".
func (t Target) String() string { return t.Platform + " on " + t.Snapshotter }

// newTarget is the only place where targets are made: equal targets have to
// have equal texts.
func newTarget(spec ocispec.Platform, isolation Isolation, snapshotter string) Target {
	text := platforms.FormatAll(spec)
	if isolation == IsolationHypervisor {
		text += "@" + string(IsolationHypervisor)
	}
	return Target{Platform: text, Snapshotter: snapshotter}
}
