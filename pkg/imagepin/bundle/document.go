package bundle

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// document has the fields of an index or a manifest. It has neither annotations nor other fields that a bundle does not need, so
// that it takes not much more memory than its text.
type document struct {
	MediaType string      `json:"mediaType"`
	Config    listed      `json:"config"`
	Layers    descriptors `json:"layers"`
	Manifests descriptors `json:"manifests"`
	FSLayers  present     `json:"fsLayers"`
}

// present reports whether a document has a field.
type present bool

// UnmarshalJSON implements json.Unmarshaler.
func (p *present) UnmarshalJSON([]byte) error {
	*p = true
	return nil
}

// descriptors are checked one by one while they are read: many invalid ones take few bytes of a text.
type descriptors []ocispec.Descriptor

// UnmarshalJSON implements json.Unmarshaler.
func (d *descriptors) UnmarshalJSON(text []byte) error {
	*d = nil
	return decodeList(text, func(decoder *json.Decoder) error {
		var one listed
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		desc := one.descriptor()
		if err := checkDescriptor(desc); err != nil {
			return err
		}
		*d = append(*d, desc)
		return nil
	})
}

// listed is a descriptor in a document.
type listed struct {
	fields listedFields
	isSet  bool
}

type listedFields struct {
	MediaType    string        `json:"mediaType"`
	ArtifactType string        `json:"artifactType"`
	Digest       digest.Digest `json:"digest"`
	Size         int64         `json:"size"`
	Platform     *struct {
		Architecture string   `json:"architecture"`
		OS           string   `json:"os"`
		OSVersion    string   `json:"os.version"`
		OSFeatures   features `json:"os.features"`
		Variant      string   `json:"variant"`
	} `json:"platform"`
}

// UnmarshalJSON implements json.Unmarshaler.
func (l *listed) UnmarshalJSON(text []byte) error {
	l.fields, l.isSet = listedFields{}, true
	if err := json.Unmarshal(text, &l.fields); err != nil {
		return err
	}
	texts := []string{l.fields.MediaType, l.fields.ArtifactType}
	if p := l.fields.Platform; p != nil {
		texts = append(texts, p.Architecture, p.OS, p.OSVersion, p.Variant)
	}
	for _, text := range texts {
		if len(text) > maxText {
			return fmt.Errorf("a text of a descriptor has %d bytes, the limit is %d: %.80q", len(text), maxText, text)
		}
	}
	return nil
}

func (l *listed) descriptor() ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: l.fields.MediaType, ArtifactType: l.fields.ArtifactType, Digest: l.fields.Digest, Size: l.fields.Size}
	if p := l.fields.Platform; p != nil {
		d.Platform = &ocispec.Platform{Architecture: p.Architecture, OS: p.OS, OSVersion: p.OSVersion, OSFeatures: p.OSFeatures, Variant: p.Variant}
	}
	return d
}

// features are the features of an operating system.
type features []string

// UnmarshalJSON implements json.Unmarshaler.
func (f *features) UnmarshalJSON(text []byte) error {
	*f = nil
	return decodeList(text, func(decoder *json.Decoder) error {
		var one string
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		if len(*f) == maxFeatures || len(one) > maxText {
			return fmt.Errorf("a platform has more than %d features, or one of more than %d bytes", maxFeatures, maxText)
		}
		*f = append(*f, one)
		return nil
	})
}

// decodeList calls each for each element of a list in JSON.
func decodeList(text []byte, each func(*json.Decoder) error) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	switch token, err := decoder.Token(); {
	case err != nil:
		return err
	case token == nil: // null
		return nil
	case token != json.Delim('['):
		return fmt.Errorf("it has %.80v where a list is expected", token)
	}
	for decoder.More() {
		if err := each(decoder); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err
}
