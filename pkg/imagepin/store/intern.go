package store

import (
	"unique"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// intern shares equal strings between entries. An image has several entries, which are read one by one.
func intern(e *imagepin.Entry) {
	for _, text := range []*string{&e.Ref, &e.Target.Platform, &e.Target.Snapshotter, &e.Record, &e.Host, &e.User, &e.RecordTarget.MediaType, &e.Root.MediaType} {
		*text = unique.Make(*text).Value()
	}
	for _, d := range []*digest.Digest{&e.Root.Digest, &e.Manifest, &e.ImageID, &e.ChainID, &e.RecordTarget.Digest} {
		*d = unique.Make(*d).Value()
	}
}
