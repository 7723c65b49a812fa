package imagepin

import (
	"crypto/sha256"
	_ "crypto/sha512" // a digest is valid only where its algorithm is linked in
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	// LabelPrefix is the prefix of every label that imagepin writes.
	LabelPrefix = "io.imagepin."
	// KeyLabelPrefix is the prefix of the name of a label that holds a key. A short hash of the key follows, so that a
	// key has exactly one label.
	KeyLabelPrefix = LabelPrefix + "key."
	// ProofLabelPrefix is the prefix of the name of a label that is a proof: a credential has fetched the record's
	// content from its repository. An HMAC under the node's key follows, see package resolve.
	ProofLabelPrefix = LabelPrefix + "proof."
	// PinnedImagesLabel marks the records whose label io.cri-containerd.pinned is there because of pinned_images. It ends with the
	// setting, and takes that label along.
	PinnedImagesLabel = LabelPrefix + "pinned-images"
	// LeaseLabel marks the leases of imagepin. Its value is their purpose.
	LeaseLabel = LabelPrefix + "lease"

	labelVersion = 1
)

// keyLabel is the JSON value of a key's label. Fields are only ever added; a change of meaning raises the version.
type keyLabel struct {
	Version     int           `json:"v"`
	Ref         string        `json:"ref"`
	Platform    string        `json:"platform"`
	Snapshotter string        `json:"snapshotter"`
	Digest      digest.Digest `json:"digest"`
	MediaType   string        `json:"mediaType"`
	RootSize    int64         `json:"rootSize"`
	Manifest    digest.Digest `json:"manifest"`
	ImageID     digest.Digest `json:"image"`
	ChainID     digest.Digest `json:"chain,omitempty"`
	Size        int64         `json:"size"`
	User        string        `json:"user,omitempty"`
	UserAside   bool          `json:"userAside,omitempty"`
	ReadyAt     time.Time     `json:"ready"`
	Source      Source        `json:"source"`
	Host        string        `json:"host,omitempty"`
	DamagedAt   time.Time     `json:"damaged,omitzero"`
	UnusedAt    time.Time     `json:"unused,omitzero"`
	UsedAt      time.Time     `json:"used,omitzero"`
	Durable     string        `json:"durable,omitempty"`
}

// KeyLabelName returns the name of the label that holds k.
func KeyLabelName(k Key) string {
	sum := sha256.Sum256([]byte(k.Ref + "\x00" + k.Target.Platform + "\x00" + k.Target.Snapshotter))
	return KeyLabelPrefix + hex.EncodeToString(sum[:8])
}

// IsKeyLabel reports whether name is the name of a label that holds a key.
func IsKeyLabel(name string) bool {
	return strings.HasPrefix(name, KeyLabelPrefix)
}

// EncodeKeyLabel returns the name and the value of the label for e. It omits a user that does not fit, see
// [Entry.UserOmitted]. It fails with ErrInvalidArgument if e is incomplete, or if the label is longer than containerd
// allows (4,096 bytes for name and value).
func EncodeKeyLabel(e Entry) (name, value string, _ error) {
	l := labelOf(e)
	if err := l.validate(); err != nil {
		return "", "", fmt.Errorf("key %s: %w", e.Key, err)
	}
	name = KeyLabelName(e.Key)
	value, err := l.encode(name)
	if err != nil && l.User != "" {
		l.User, l.UserAside = "", true
		value, err = l.encode(name)
	}
	if err != nil {
		return "", "", fmt.Errorf("key %s: %w", e.Key, err)
	}
	return name, value, nil
}

// IsKeyLabelOf reports whether value is what [EncodeKeyLabel] returns for e, which has been recorded. It does not parse
// value.
func IsKeyLabelOf(e Entry, value string) bool {
	b, err := json.Marshal(labelOf(e))
	return err == nil && string(b) == value
}

// labelOf returns the label for an entry.
func labelOf(e Entry) keyLabel {
	l := keyLabel{
		Version:     labelVersion,
		Ref:         e.Ref,
		Platform:    e.Key.Target.Platform,
		Snapshotter: e.Key.Target.Snapshotter,
		Digest:      e.Root.Digest,
		MediaType:   e.Root.MediaType,
		RootSize:    e.Root.Size,
		Manifest:    e.Manifest,
		ImageID:     e.ImageID,
		ChainID:     e.ChainID,
		Size:        e.Size,
		User:        e.User,
		UserAside:   e.UserOmitted,
		ReadyAt:     e.ReadyAt.UTC(),
		Source:      e.Source,
		Host:        e.Host,
		DamagedAt:   e.DamagedAt.UTC(),
		UnusedAt:    e.UnusedAt.UTC(),
		UsedAt:      e.UsedAt.UTC(),
		Durable:     e.Durable,
	}
	if l.UserAside {
		l.User = ""
	}
	return l
}

// encode returns the value of a label with this name. It fails with ErrInvalidArgument if name and value are too long.
func (l keyLabel) encode(name string) (string, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return "", err
	}
	return string(b), labels.Validate(name, string(b))
}

// DecodeKeyLabel reads a label written by [EncodeKeyLabel]. It fails with ErrNotImplemented for a label of a newer
// version, and with ErrInvalidArgument for a label that is damaged or has another key's name. The caller sets the
// entry's Record and RecordTarget.
func DecodeKeyLabel(name, value string) (Entry, error) {
	var l keyLabel
	if err := json.Unmarshal([]byte(value), &l); err != nil {
		return Entry{}, fmt.Errorf("label %s: %v: %w", name, err, errdefs.ErrInvalidArgument)
	}
	if l.Version > labelVersion {
		return Entry{}, fmt.Errorf("label %s: version %d is newer than %d: %w", name, l.Version, labelVersion, errdefs.ErrNotImplemented)
	}
	if err := l.validate(); err != nil {
		return Entry{}, fmt.Errorf("label %s: %w", name, err)
	}
	e := Entry{
		Key:      Key{Ref: l.Ref, Target: runtimeplatform.Target{Platform: l.Platform, Snapshotter: l.Snapshotter}},
		Root:     ocispec.Descriptor{MediaType: l.MediaType, Digest: l.Digest, Size: l.RootSize},
		Manifest: l.Manifest,
		ImageID:  l.ImageID,
		ChainID:  l.ChainID,
		Size:     max(l.Size, 0),
		User:     l.User,
		ReadyAt:  l.ReadyAt,
		Source:   l.Source,
		Host:     l.Host,

		UserOmitted: l.UserAside,
		DamagedAt:   l.DamagedAt,
		UnusedAt:    l.UnusedAt,
		UsedAt:      l.UsedAt,
		Durable:     l.Durable,
	}
	if want := KeyLabelName(e.Key); want != name {
		return Entry{}, fmt.Errorf("label %s: holds key %s, which belongs in label %s: %w", name, e.Key, want, errdefs.ErrInvalidArgument)
	}
	return e, nil
}

func (l keyLabel) validate() error {
	if l.Version < 1 {
		return fmt.Errorf("version %d: %w", l.Version, errdefs.ErrInvalidArgument)
	}
	if _, err := reference.ParseNamed(l.Ref); err != nil {
		return fmt.Errorf("reference %q: %v: %w", l.Ref, err, errdefs.ErrInvalidArgument)
	}
	if l.Platform == "" || l.Snapshotter == "" {
		return fmt.Errorf("platform %q and snapshotter %q must be set: %w", l.Platform, l.Snapshotter, errdefs.ErrInvalidArgument)
	}
	for field, d := range map[string]digest.Digest{"digest": l.Digest, "manifest": l.Manifest, "image": l.ImageID} {
		if err := validateDigest(d); err != nil {
			return fmt.Errorf("%s %q: %v: %w", field, d, err, errdefs.ErrInvalidArgument)
		}
	}
	// A time zone can move a valid time out of the years that JSON supports. An entry that cannot be written again
	// would block changes of its record.
	for _, at := range [...]time.Time{l.ReadyAt, l.DamagedAt, l.UnusedAt, l.UsedAt} {
		if y := at.UTC().Year(); y < 0 || y > 9999 {
			return fmt.Errorf("time %s is out of range: %w", at, errdefs.ErrInvalidArgument)
		}
	}
	if l.ChainID != "" {
		if err := validateDigest(l.ChainID); err != nil {
			return fmt.Errorf("chain %q: %v: %w", l.ChainID, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// validateDigest is d.Validate with a fast path for SHA-256: the regular expressions of d.Validate took a quarter of
// the time that reading thousands of labels takes at startup.
func validateDigest(d digest.Digest) error {
	hex, ok := strings.CutPrefix(string(d), "sha256:")
	if ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return nil
	}
	return d.Validate()
}
