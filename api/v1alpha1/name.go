package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

const (
	// maxOwnerName is how much of an owner's name the name of an ImagePin has, so that the name is at most 253 characters.
	maxOwnerName = 242
	// hashDigits is the length of the hash in the name of an ImagePin.
	hashDigits = 10
)

// Name returns the name of the ImagePin of an owner and an image: the owner's name, a dot, and the first 10 hex digits of
// the SHA-256 of the owner's UID, its revision and the image, separated by NUL. An owner's name of more than 242
// characters is cut. The revision is empty for an owner without one.
func Name(owner Owner, image string) string {
	sum := sha256.Sum256([]byte(string(owner.UID) + "\x00" + owner.Revision + "\x00" + image))
	name := owner.Name
	if len(name) > maxOwnerName {
		name = strings.TrimRight(name[:maxOwnerName], "-.")
	}
	return name + "." + hex.EncodeToString(sum[:])[:hashDigits]
}
