package imagepin

import (
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Key names one image on the node: a normalized reference (docker.io/library/
// busybox:1, or with a digest), and the target that it is unpacked for. Keys
// are comparable.
type Key struct {
	Ref    string
	Target runtimeplatform.Target
}

// String is the key as logs and errors show it.
func (k Key) String() string {
	return k.Ref + " for " + k.Target.String()
}

// Source says how an image came to the node.
type Source string

const (
	// SourcePull is an image that was pulled through imagepin.
	SourcePull Source = "pull"
	// SourceAdopted is an image that another tool pulled.
	SourceAdopted Source = "adopted"
	// SourceImported is an image with no registry behind it: another tool
	// loaded it from a file.
	SourceImported Source = "imported"
)

// Entry is what is known of a key that is ready. It is what the key's label
// says, and where that label was found.
type Entry struct {
	Key

	// Root is the descriptor that the registry gave for the reference: an
	// index, or a manifest where there is no index.
	Root ocispec.Descriptor
	// Manifest is the digest of the manifest chosen for the target.
	Manifest digest.Digest
	// ImageID is the digest of the image's configuration, which is what the
	// CRI calls image ID.
	ImageID digest.Digest
	// ChainID names the image's top snapshot. It is empty for an image
	// without layers.
	ChainID digest.Digest
	// Size is the sum of what the record's target leads to for the key's
	// platform, in bytes: indexes, the manifest, the configuration, and the
	// layers as the registry holds them. containerd's CRI counts the same.
	Size int64
	// User is the user the image's configuration asks for, as written there.
	User string
	// UserAside tells that the label has no room for the user: who reads the
	// label finds it in the image's configuration.
	UserAside bool
	// ReadyAt is when the key was made ready, to the second.
	ReadyAt time.Time
	// Source is how the image came to the node.
	Source Source
	// Host is the registry host that was asked for the digest: empty where
	// none was.
	Host string

	// Record is the name of the image record that carries the label.
	Record string
	// RecordTarget is what that record targets and so keeps alive. It is not
	// part of the label.
	RecordTarget ocispec.Descriptor
}
