package bundle

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
)

// TestLimitOfBlobs checks that a bundle has as many blobs as its limit says, and no more.
func TestLimitOfBlobs(t *testing.T) {
	c := newClosure(&lock.Lock{})
	var raw [32]byte
	for n := range maxBlobs + 1 {
		binary.BigEndian.PutUint32(raw[:], uint32(n))
		d := ocispec.Descriptor{Digest: digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(raw[:])), Size: 1}
		_, _, err := c.note(d, 0)
		if n < maxBlobs && err != nil {
			t.Fatalf("%d blobs: %v", n+1, err)
		}
		if n == maxBlobs && (err == nil || !strings.Contains(err.Error(), "more than 131072 blobs")) {
			t.Errorf("one more: got %v", err)
		}
	}
}
