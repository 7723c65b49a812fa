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
		d := digest.NewDigestFromEncoded(digest.SHA256, hex.EncodeToString(raw[:]))
		var err error
		if n < maxBlobs-1 {
			_, _, err = c.blobs.Add(d)
		} else {
			_, _, err = c.note(ocispec.Descriptor{Digest: d, Size: 1}, 0)
		}
		if n < maxBlobs && err != nil {
			t.Fatalf("%d blobs: %v", n+1, err)
		}
		if n == maxBlobs && (err == nil || !strings.Contains(err.Error(), "more than 131072 blobs")) {
			t.Errorf("one more: got %v", err)
		}
	}
}

// TestLimitOfDigests checks that a list of digests has as many as its limit says, and no more.
func TestLimitOfDigests(t *testing.T) {
	list := []byte(`["` + digest.FromString("1").String() + `","` + digest.FromString("0").String()[:7] + strings.Repeat("f", 64) + `"]`)
	for limit, want := range []string{"more than 0 digests", "more than 1 digests", ""} {
		err := eachDigest(list, limit, func(digest.Digest) error { return nil })
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("limit %d: got %v", limit, err)
		}
	}
}
