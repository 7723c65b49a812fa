package seed

import (
	"errors"

	digest "github.com/opencontainers/go-digest"
	corev1 "k8s.io/api/core/v1"

	"github.com/imagepin/imagepin/cmd/kubectl-imagepin/internal/workload"
	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// Set is the digest of each tag of a lock. Its keys are normalized references.
type Set map[string]digest.Digest

// SetOf returns the digests of the tags of a lock. It fails if the lock names no tag: an ImagesLock can have only digests.
func SetOf(l *lock.Lock) (Set, error) {
	s := make(Set, len(l.Images))
	for _, i := range l.Images {
		if tag, ok := i.Tag(); ok {
			s[tag.String()] = i.Ref.Digest()
		}
	}
	if len(s) == 0 {
		return nil, errors.New("it names no tags: its images need the annotation " + lock.IDAnnotation)
	}
	return s, nil
}

// Images returns the images of a pod template for which there can be an ImagePin, normalized, each once, in the order in
// which the containers start. It fails for an invalid reference.
func Images(template *corev1.PodSpec) ([]string, error) {
	var images []string
	seen := make(map[string]bool)
	for _, c := range workload.Containers(template) {
		parsed, err := workload.ParseImage(c.Image)
		if err != nil {
			return nil, err
		}
		if image, ok := parsed.Pinnable(); ok && !seen[image] {
			images, seen[image] = append(images, image), true
		}
	}
	return images, nil
}
