package store

import (
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// texts shares equal strings between entries that are read one by one: an image has several entries. It is used for one
// list, so that it does not keep the strings of entries that are gone.
type texts map[string]string

// share replaces the strings of an entry by equal ones of earlier entries.
func (t texts) share(e *imagepin.Entry) {
	for _, s := range []*string{&e.Record, &e.Ref, &e.Target.Platform, &e.Target.Snapshotter, &e.Host, &e.User, &e.RecordTarget.MediaType, &e.Root.MediaType} {
		*s = t.shared(*s)
	}
	// The name of a record by digest ends with the digest of its target.
	if _, d, ok := strings.Cut(e.Record, "@"); ok {
		t.shared(d)
	}
	for _, d := range []*digest.Digest{&e.Root.Digest, &e.Manifest, &e.ImageID, &e.ChainID, &e.RecordTarget.Digest} {
		*d = digest.Digest(t.shared(string(*d)))
	}
}

func (t texts) shared(s string) string {
	if have, ok := t[s]; ok {
		return have
	}
	t[s] = s
	return s
}
