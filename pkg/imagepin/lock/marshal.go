package lock

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"

	"github.com/opencontainers/go-digest"
	"sigs.k8s.io/yaml"
)

// fileImage is the form of an image in a lock.
type fileImage struct {
	Image       string            `json:"image"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Marshal returns the lock in YAML. Equal locks have equal bytes.
func (l *Lock) Marshal() ([]byte, error) {
	var text bytes.Buffer
	err := l.write(&text)
	return text.Bytes(), err
}

// Digest returns the digest of the lock in YAML. It identifies the lock.
func (l *Lock) Digest() (digest.Digest, error) {
	d := digest.Canonical.Digester()
	if err := l.write(d.Hash()); err != nil {
		return "", err
	}
	return d.Digest(), nil
}

// write writes the lock in YAML, one image at a time: the YAML encoder needs many times the size of what it writes.
func (l *Lock) write(w io.Writer) error {
	images := "images:\n"
	if len(l.Images) == 0 {
		images = "images: []\n"
	}
	if _, err := io.WriteString(w, "apiVersion: "+APIVersion+"\n"+images); err != nil {
		return err
	}
	for _, i := range l.Images {
		text, err := i.text()
		if err != nil {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	_, err := io.WriteString(w, "kind: "+Kind+"\n")
	return err
}

// text returns the image as a list in YAML.
func (i Image) text() ([]byte, error) {
	annotations := make(map[string]string, len(i.Annotations)+2)
	maps.Copy(annotations, i.Annotations)
	if i.ID != "" {
		annotations[IDAnnotation] = i.ID
	}
	if len(i.Platforms) > 0 {
		text, err := json.Marshal(i.Platforms)
		if err != nil {
			return nil, err
		}
		annotations[platformsAnnotation] = string(text)
	}
	return yaml.Marshal([]fileImage{{Image: i.Ref.String(), Annotations: annotations}})
}

// checkSize fails if Parse would not read the image again. In YAML, a text has at most escapes times its size.
func (i Image) checkSize() error {
	const escapes = 8
	size := len(i.ID)
	for name, text := range i.Annotations {
		size += len(name) + len(text)
	}
	for platform, d := range i.Platforms {
		size += len(platform) + len(d)
	}
	if size < MaxImageSize/escapes/2 {
		return nil
	}
	text, err := i.text()
	if err != nil {
		return err
	}
	if len(text) > MaxImageSize {
		return invalid(nil, "%s: %d bytes, an image of a lock has at most %d", i.Ref, len(text), MaxImageSize)
	}
	return nil
}
