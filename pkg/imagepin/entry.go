package imagepin

import (
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// Key identifies one image on the node: a normalized reference, by tag or by digest (docker.io/library/busybox:1), and
// the target that the image is unpacked for. Keys are comparable.
type Key struct {
	Ref    string
	Target runtimeplatform.Target
}

// String returns the key as it is shown in logs and errors.
func (k Key) String() string {
	return k.Ref + " for " + k.Target.String()
}

// Source is how an image came to the node.
type Source string

const (
	// SourcePull: the image was pulled through imagepin.
	SourcePull Source = "pull"
	// SourceAdopted: another tool pulled the image.
	SourceAdopted Source = "adopted"
	// SourceImported: another tool loaded the image from a file. It has no registry.
	SourceImported Source = "imported"
)

// Entry describes a key: the content of its label, and the image record that carries the label. The key is ready, unless
// DamagedAt is set.
type Entry struct {
	Key

	// Root is the descriptor that the registry returned for the reference: an index, or a manifest if there is no
	// index.
	Root ocispec.Descriptor
	// Manifest is the digest of the manifest chosen for the target.
	Manifest digest.Digest
	// ImageID is the digest of the image's configuration, which the CRI calls the image ID.
	ImageID digest.Digest
	// ChainID identifies the image's top snapshot. It is empty for an image without layers.
	ChainID digest.Digest
	// Size is the total size, in bytes, of what the record's target references for the key's platform: indexes, the
	// manifest, the configuration, and the layers as stored in the registry. containerd's CRI counts the same, but
	// relies on the sizes that the image declares. It is never negative.
	Size int64
	// User is the user in the image's configuration, as written there.
	User string
	// UserOmitted reports that the user is too long for the label. Readers of the label find it in the image's
	// configuration.
	UserOmitted bool
	// ReadyAt is the time when the key became ready. Earlier versions recorded it to the second.
	ReadyAt time.Time
	// Source is how the image came to the node.
	Source Source
	// Host is the registry host that resolved the digest. It is empty if no host did.
	Host string

	// DamagedAt is when the key became damaged: its label stays, but the image is not ready and could not be repaired yet.
	// It is zero for a key that is ready. Keys in the index are never damaged.
	DamagedAt time.Time
	// Durable is the ID of the boot in which content and snapshot were made durable, see package durable. If it is empty, they
	// may be lost when the power is cut, or were lost when it was.
	Durable string
	// UsedAt is when something used the image, at most an hour before its last use. It is zero if that was within an hour after ReadyAt,
	// or is not known.
	UsedAt time.Time
	// UnusedAt is since when no runtime handler has had the key's target. It is zero while one has it.
	UnusedAt time.Time

	// Record is the name of the image record that carries the label.
	Record string
	// RecordTarget is the target of that record, whose content the record keeps alive. It is not part of the label.
	RecordTarget ocispec.Descriptor
}

// LastUse returns when the image was last used as far as it is recorded: a pull that unpacks it counts.
func (e Entry) LastUse() time.Time {
	if e.UsedAt.After(e.ReadyAt) {
		return e.UsedAt
	}
	return e.ReadyAt
}
