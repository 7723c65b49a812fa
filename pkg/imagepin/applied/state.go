package applied

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin/lock"
	"github.com/imagepin/imagepin/pkg/imagepin/pin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

// MediaType is the media type of the blob of a State.
const MediaType = "application/vnd.imagepin.applied.v1+json"

// version is the version of the blob.
const version = 1

// State is the lock of a node.
type State struct {
	// Current is the lock that the node has applied, and Previous the one before it. Both may be nil.
	Current, Previous *Applied
	// Dropped identifies the content of the drop directories that was applied last. It is empty if there was none.
	Dropped digest.Digest
}

// Applied is a lock that the node has applied. It is immutable.
type Applied struct {
	Lock *lock.Lock
	// Digest identifies the lock, see [lock.Lock.Digest].
	Digest digest.Digest
	// Roots has the descriptors of the images of the lock, as the registry or the bundle has them.
	Roots map[digest.Digest]ocispec.Descriptor
	// Name is the name of the file that the lock came from, for people.
	Name string
	// Bundle reports that the content of the images came from a bundle, and not from a registry.
	Bundle bool
	// Handlers are the runtime handlers that the images are ready for. None means all.
	Handlers []string
	At       time.Time
}

// rootDigests returns the digests of the images.
func (a *Applied) rootDigests() []digest.Digest {
	if a == nil {
		return nil
	}
	var all []digest.Digest
	for d := range a.Roots {
		all = append(all, d)
	}
	return all
}

// pins returns the pins of the lock: one for each tag, and one for each image that no tag names, so that its content is
// retained.
func (a *Applied) pins() []pin.Pin {
	if a == nil {
		return nil
	}
	pins := make(map[string]pin.Pin)
	add := func(ref string, root ocispec.Descriptor) {
		pins[ref] = pin.Pin{
			ID: pin.ID{Scope: policy.LockScope, Ref: ref}, Root: root, MadeAt: a.At, UsedAt: a.At, By: pin.ByLock, Retain: true,
		}
	}
	for _, i := range a.Lock.Images {
		root := a.Roots[i.Ref.Digest()]
		if tag, ok := i.Tag(); ok {
			add(tag.String(), root)
		} else {
			add(i.Ref.String(), root)
		}
	}
	all := make([]pin.Pin, 0, len(pins))
	for _, p := range pins {
		all = append(all, p)
	}
	return all
}

// blob is the form of a State on disk.
type blob struct {
	Version  int           `json:"version"`
	Current  *appliedBlob  `json:"current,omitempty"`
	Previous *appliedBlob  `json:"previous,omitempty"`
	Dropped  digest.Digest `json:"dropped,omitempty"`
}

type appliedBlob struct {
	Lock     string               `json:"lock"`
	Roots    []ocispec.Descriptor `json:"roots"`
	Name     string               `json:"name,omitempty"`
	Bundle   bool                 `json:"bundle,omitempty"`
	Handlers []string             `json:"handlers,omitempty"`
	At       time.Time            `json:"at"`
}

func (s State) marshal() ([]byte, error) {
	b := blob{Version: version, Dropped: s.Dropped}
	var err error
	if b.Current, err = s.Current.blob(); err != nil {
		return nil, err
	}
	if b.Previous, err = s.Previous.blob(); err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

func (a *Applied) blob() (*appliedBlob, error) {
	if a == nil {
		return nil, nil
	}
	text, err := a.Lock.Marshal()
	if err != nil {
		return nil, err
	}
	b := &appliedBlob{Lock: string(text), Name: a.Name, Bundle: a.Bundle, Handlers: a.Handlers, At: a.At.UTC().Truncate(time.Second)}
	written := make(map[digest.Digest]bool)
	for _, i := range a.Lock.Images {
		d := i.Ref.Digest()
		root, ok := a.Roots[d]
		if !ok {
			return nil, fmt.Errorf("the lock has no descriptor of %s: %w", i.Ref, errdefs.ErrInvalidArgument)
		}
		if !written[d] {
			written[d] = true
			b.Roots = append(b.Roots, root)
		}
	}
	return b, nil
}

// unmarshal reads a State. It fails with ErrNotImplemented for a newer version, and with ErrInvalidArgument if it is damaged.
func unmarshal(data []byte) (State, error) {
	var b blob
	if err := json.Unmarshal(data, &b); err != nil {
		return State{}, fmt.Errorf("the applied lock: %v: %w", err, errdefs.ErrInvalidArgument)
	}
	if b.Version > version {
		return State{}, fmt.Errorf("the applied lock: version %d is newer than %d: %w", b.Version, version, errdefs.ErrNotImplemented)
	}
	s := State{Dropped: b.Dropped}
	var err error
	if s.Current, err = b.Current.read(); err != nil {
		return State{}, err
	}
	s.Previous, err = b.Previous.read()
	return s, err
}

func (b *appliedBlob) read() (*Applied, error) {
	if b == nil {
		return nil, nil
	}
	l, err := lock.Parse([]byte(b.Lock))
	if err != nil {
		return nil, err
	}
	a := &Applied{Lock: l, Name: b.Name, Bundle: b.Bundle, Handlers: b.Handlers, At: b.At, Roots: make(map[digest.Digest]ocispec.Descriptor)}
	if a.Digest, err = l.Digest(); err != nil {
		return nil, err
	}
	for _, d := range b.Roots {
		a.Roots[d.Digest] = d
	}
	for _, i := range l.Images {
		if _, ok := a.Roots[i.Ref.Digest()]; !ok {
			return nil, fmt.Errorf("the applied lock: it has no descriptor of %s: %w", i.Ref, errdefs.ErrInvalidArgument)
		}
	}
	return a, nil
}
