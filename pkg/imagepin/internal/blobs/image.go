package blobs

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// Image identifies the content of an image.
type Image struct {
	// Target is the target of the image's record: the manifest, or an index above it.
	Target   digest.Digest
	Manifest digest.Digest
	Config   digest.Digest
	// Unpacked reports whether the image has a snapshot. Its layers are not needed then.
	Unpacked bool
}

// ImageOf identifies the content of an entry.
func ImageOf(e imagepin.Entry) Image {
	return Image{Target: e.RecordTarget.Digest, Manifest: e.Manifest, Config: e.ImageID, Unpacked: e.ChainID != ""}
}

// Need is a blob that an image needs.
type Need struct {
	// Kind is what the blob is, in words.
	Kind   string
	Digest digest.Digest
}

// Found is what is known of a blob.
type Found struct {
	// Recorded reports whether the content store has a record of the blob, which Refs are from.
	Recorded bool
	Refs     Refs
	// Intact reports whether the blob is recorded and its file is not damaged.
	Intact bool
}

// Look looks for a blob.
type Look func(digest.Digest) (Found, error)

// LookIn returns a Look for a content store. It looks for each blob once, and fails if the state of a file is unknown.
func LookIn(ctx context.Context, store content.Store) Look {
	known := make(map[digest.Digest]Found)
	return func(d digest.Digest) (Found, error) {
		if found, ok := known[d]; ok {
			return found, nil
		}
		found, err := look(ctx, store, d)
		if err == nil {
			known[d] = found
		}
		return found, err
	}
}

func look(ctx context.Context, store content.Store, d digest.Digest) (Found, error) {
	info, err := store.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return Found{}, nil
	}
	if err != nil {
		return Found{}, err
	}
	found := Found{Recorded: true, Refs: RefsOf(info)}
	err = Check(ctx, store, d, info.Size)
	if damage := new(Damage); errors.As(err, &damage) {
		return found, nil
	}
	found.Intact = err == nil
	return found, err
}

// Needed returns the blobs that an image needs: the target of its record, the indexes between that and its manifest,
// the manifest and the configuration. An image that is not unpacked, such as WebAssembly, also needs its layers. It
// reads no file. indexGone reports whether an index above the manifest is not recorded, so that it is unknown which.
func (i Image) Needed(look Look) (needed []Need, indexGone bool, _ error) {
	indexes, indexGone, err := i.nestedIndexes(look)
	if err != nil {
		return nil, false, err
	}
	needed = append(make([]Need, 0, 3), Need{"index or manifest", i.Target})
	for _, d := range indexes {
		needed = append(needed, Need{"index", d})
	}
	needed = append(needed, Need{"manifest", i.Manifest}, Need{"configuration", i.Config})
	if i.Unpacked {
		return needed, indexGone, nil
	}
	manifest, err := look(i.Manifest)
	if err != nil {
		return nil, false, err
	}
	for _, d := range manifest.Refs.Untyped {
		if d != i.Config {
			needed = append(needed, Need{"layer", d})
		}
	}
	return needed, indexGone, nil
}

// nestedIndexes returns the indexes by which the target references the manifest: none if it does so itself. If there
// are several paths, it prefers one without damage.
func (i Image) nestedIndexes(look Look) (indexes []digest.Digest, gone bool, _ error) {
	if i.Target == i.Manifest {
		return nil, false, nil
	}
	target, err := look(i.Target)
	if err != nil || target.Refs.have(i.Manifest) {
		return nil, false, err
	}
	for _, intact := range []bool{true, false} {
		s := search{manifest: i.Manifest, look: look, intact: intact}
		path, found, err := s.below(target)
		if err != nil || found {
			return path, false, err
		}
		gone = s.gone
	}
	return nil, gone, nil
}

// search searches for the indexes above a manifest.
type search struct {
	manifest digest.Digest
	look     Look
	intact   bool // ignore damaged indexes
	gone     bool // an index is not recorded
	seen     []digest.Digest
}

func (s *search) below(index Found) (path []digest.Digest, found bool, _ error) {
	if index.Refs.have(s.manifest) {
		return nil, true, nil
	}
	for _, d := range index.Refs.Untyped {
		if slices.Contains(s.seen, d) {
			continue
		}
		s.seen = append(s.seen, d)
		nested, err := s.look(d)
		if err != nil {
			return nil, false, err
		}
		if !nested.Recorded {
			s.gone = true
		}
		if !nested.Recorded || s.intact && !nested.Intact {
			continue
		}
		path, found, err := s.below(nested)
		if err != nil || found {
			return append([]digest.Digest{d}, path...), found, err
		}
	}
	return nil, false, nil
}
