package runtimeplatform

import (
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Target is the platform and the snapshotter that an image is unpacked for. It is comparable.
type Target struct {
	// Platform is the canonical text of the normalized platform, from [platforms.FormatAll], for example
	// "linux/arm/v7". A platform with hypervisor isolation has the suffix "@hypervisor", because it selects other
	// manifests than the same platform without: "windows(10.0.20348)/amd64@hypervisor". For the platform itself, use
	// [Runtime].Spec.
	Platform string

	// Snapshotter is the name of the snapshotter that unpacks the image.
	Snapshotter string
}

// String returns the target as it is shown in logs and messages: "linux/arm64 on native".
func (t Target) String() string { return t.Platform + " on " + t.Snapshotter }

// newTarget must be the only function that creates targets: equal targets must have equal text.
func newTarget(spec ocispec.Platform, isolation Isolation, snapshotter string) Target {
	text := platforms.FormatAll(spec)
	if isolation == IsolationHypervisor {
		text += "@" + string(IsolationHypervisor)
	}
	return Target{Platform: text, Snapshotter: snapshotter}
}
