package store

import "github.com/imagepin/imagepin/pkg/imagepin"

// interned are the texts of entries, each kept once: an image's digests and names
// are in every one of its entries, and many images have the same platform,
// snapshotter, media type and host.
type interned map[string]string

// share makes an entry share its texts with those before it.
func (x interned) share(e *imagepin.Entry) {
	for _, text := range []*string{
		&e.Ref, &e.Target.Platform, &e.Target.Snapshotter, &e.Host, (*string)(&e.Source), &e.User, &e.Record,
		&e.Root.MediaType, (*string)(&e.Root.Digest), &e.RecordTarget.MediaType, (*string)(&e.RecordTarget.Digest),
		(*string)(&e.Manifest), (*string)(&e.ImageID), (*string)(&e.ChainID),
	} {
		if same, ok := x[*text]; ok {
			*text = same
		} else {
			x[*text] = *text
		}
	}
}
