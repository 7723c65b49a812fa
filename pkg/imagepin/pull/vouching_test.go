package pull

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"k8s.io/utils/lru"
)

func named(t *testing.T, ref string) reference.Named {
	t.Helper()
	n, err := reference.ParseNamed(ref)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestServed checks that only the last blobs are remembered, by repository with its port.
func TestServed(t *testing.T) {
	v := &vouching{served: lru.New(maxServed)}
	note := func(ref reference.Named, d digest.Digest) { v.served.Add(servedBlob{ref.Name(), d}, nil) }
	d := digest.FromString("blob")
	note(named(t, "registry.example:1/team/app:1"), d)
	for ref, want := range map[string]bool{
		"registry.example:1/team/app:2": true, "registry.example:2/team/app:1": false, "registry.example/team/app:1": false,
		"registry.example:1/team/ap:1": false, "other.example:1/team/app:1": false,
	} {
		if got := v.hasServed(named(t, ref), d); got != want {
			t.Errorf("%s: got %t, want %t", ref, got, want)
		}
	}
	ref := named(t, "registry.example/many:1")
	for i := range 3 * maxServed {
		note(ref, digest.FromString(fmt.Sprint(i)))
		note(ref, digest.FromString(fmt.Sprint(i)))
	}
	if n := v.served.Len(); n != maxServed {
		t.Errorf("got %d blobs, want %d", n, maxServed)
	}
	if !v.hasServed(ref, digest.FromString(fmt.Sprint(2*maxServed))) || v.hasServed(ref, digest.FromString(fmt.Sprint(2*maxServed-1))) {
		t.Error("the remembered blobs are not the last ones")
	}
}

type seekable struct{ *bytes.Reader }

func (seekable) Close() error { return nil }

// TestVerifying checks that a complete and matching body is reported once, for any way to read it, and another body
// never.
func TestVerifying(t *testing.T) {
	text := strings.Repeat("content ", 1000)
	desc := ocispec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
	read := func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}
	for name, test := range map[string]struct {
		body io.Reader
		desc ocispec.Descriptor
		want int
	}{
		"at once":         {strings.NewReader(text), desc, 1},
		"byte by byte":    {iotest.OneByteReader(strings.NewReader(text)), desc, 1},
		"end with data":   {iotest.DataErrReader(strings.NewReader(text)), desc, 1},
		"cut":             {strings.NewReader(text[1:]), desc, 0},
		"empty":           {strings.NewReader(""), desc, 0},
		"something else":  {strings.NewReader(strings.ToUpper(text)), desc, 0},
		"of another size": {strings.NewReader(text), ocispec.Descriptor{Digest: desc.Digest, Size: desc.Size + 1}, 0},
		"no digest":       {strings.NewReader(text), ocispec.Descriptor{Digest: "none", Size: desc.Size}, 0},
	} {
		verified := 0
		if err := read(verifying(io.NopCloser(test.body), test.desc, func(digest.Digest) { verified++ })); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if verified != test.want {
			t.Errorf("%s: reported %d times, want %d", name, verified, test.want)
		}
	}
	// A body that is read from its middle is not hashed.
	verified := 0
	body := verifying(seekable{bytes.NewReader([]byte(text))}, desc, func(digest.Digest) { verified++ })
	if _, err := body.(io.Seeker).Seek(10, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if err := read(body); err != nil || verified != 0 {
		t.Errorf("read from the middle: reported %d times, %v, want 0", verified, err)
	}
	if _, err := verifying(io.NopCloser(strings.NewReader(text)), desc, nil).(io.Seeker).Seek(0, io.SeekStart); err == nil {
		t.Error("Seek succeeded on a body that cannot seek")
	}
}

// TestEmbedded checks that embedded content counts only if it matches its descriptor.
func TestEmbedded(t *testing.T) {
	data := []byte("{}")
	good := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: 2, Data: data}
	none, long, wrong := good, good, good
	none.Data, long.Size, wrong.Digest = nil, 3, digest.FromString("other")
	for name, test := range map[string]struct {
		desc ocispec.Descriptor
		want bool
	}{"good": {good, true}, "none": {none, false}, "long": {long, false}, "wrong": {wrong, false}} {
		if got := embedded(test.desc); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
