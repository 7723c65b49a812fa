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
	// LabelPrefix begins every label that imagepin writes.
	LabelPrefix = "io.imagepin."
	// KeyLabelPrefix begins the name of a label that holds a key. What
	// follows is a short hash of the key, so that a key has one label.
	KeyLabelPrefix = LabelPrefix + "key."
	// ProofLabelPrefix begins the name of a label which says that a
	// credential has fetched the record's content from its repository. What
	// follows is an HMAC under the node's key, see package resolve.
	ProofLabelPrefix = LabelPrefix + "proof."
	// LeaseLabel marks the leases of imagepin. Its value is their purpose.
	LeaseLabel = LabelPrefix + "lease"

	labelVersion = 1
)

// keyLabel is the value of a key's label, as JSON. A field is only ever
// added; a change of meaning raises the version.
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
}

// KeyLabelName is the name of the label that holds k.
func KeyLabelName(k Key) string {
	sum := sha256.Sum256([]byte(k.Ref + "\x00" + k.Target.Platform + "\x00" + k.Target.Snapshotter))
	return KeyLabelPrefix + hex.EncodeToString(sum[:8])
}

// IsKeyLabel tells whether name is the name of a label that holds a key.
func IsKeyLabel(name string) bool {
	return strings.HasPrefix(name, KeyLabelPrefix)
}

// EncodeKeyLabel gives the name and the value of the label for e. A user that
// there is no room for is left out; see [Entry.UserAside]. It fails with
// ErrInvalidArgument where e is incomplete or the label would be longer than
// containerd allows (4,096 bytes of name and value).
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

// IsKeyLabelOf tells whether value is what [EncodeKeyLabel] gives for an entry
// that has been recorded, without reading it.
func IsKeyLabelOf(e Entry, value string) bool {
	b, err := json.Marshal(labelOf(e))
	return err == nil && string(b) == value
}

// labelOf is what a label says of an entry.
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
		UserAside:   e.UserAside,
		ReadyAt:     e.ReadyAt.UTC().Truncate(time.Second),
		Source:      e.Source,
		Host:        e.Host,
	}
	if l.UserAside {
		l.User = ""
	}
	return l
}

// encode gives the value of a label called name. It fails with
// ErrInvalidArgument where that is too long.
func (l keyLabel) encode(name string) (string, error) {
	b, err := json.Marshal(l)
	if err != nil {
		return "", err
	}
	return string(b), labels.Validate(name, string(b))
}

// DecodeKeyLabel reads a label written by [EncodeKeyLabel]. It fails with
// ErrNotImplemented for a label of a newer version, and with
// ErrInvalidArgument for one that is damaged or stands under another key's
// name. The entry's Record and RecordTarget are left to the caller.
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
		Size:     l.Size,
		User:     l.User,
		ReadyAt:  l.ReadyAt,
		Source:   l.Source,
		Host:     l.Host,

		UserAside: l.UserAside,
	}
	if want := KeyLabelName(e.Key); want != name {
		return Entry{}, fmt.Errorf("label %s: holds key %s, whose label is %s: %w", name, e.Key, want, errdefs.ErrInvalidArgument)
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
	// A time zone can carry a legal time out of the years that JSON can have:
	// what is read has to be writable again, or its record cannot be changed.
	if y := l.ReadyAt.UTC().Year(); y < 0 || y > 9999 {
		return fmt.Errorf("ready %s: %w", l.ReadyAt, errdefs.ErrInvalidArgument)
	}
	if l.ChainID != "" {
		if err := validateDigest(l.ChainID); err != nil {
			return fmt.Errorf("chain %q: %v: %w", l.ChainID, err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// validateDigest is d.Validate, whose regular expressions took a quarter of the
// time in which a start reads thousands of labels.
func validateDigest(d digest.Digest) error {
	hex, ok := strings.CutPrefix(string(d), "sha256:")
	if ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == "" {
		return nil
	}
	return d.Validate()
}
