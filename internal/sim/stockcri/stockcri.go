// Package stockcri models the image handling of containerd's own CRI service. In the simulator it is imagepin's
// upstream.
//
// It follows containerd 2.4.2. Each function names the function that it models. The conformance test in
// integration/stock runs one script on both.
package stockcri

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/upstream"
)

// Image models Image of internal/cri/store/image/image.go.
type Image struct {
	ID string
	// References are sorted as store.add does: tags first, then digests, then the ID.
	References []string
	ChainID    digest.Digest
	Pinned     bool
	User       string
}

// Config has the dependencies of a Service.
type Config struct {
	Images  images.Store
	Content content.Store
	// PinnedImages are the values of pinned_images.
	PinnedImages []string
}

// Service is the image side of containerd's CRI.
type Service struct {
	config   Config
	mu       sync.Mutex
	refs     map[string]string // refCache: reference → image ID
	images   map[string]*Image
	pinned   map[string]map[string]bool // pinnedRefs
	platform platforms.MatchComparer
}

// New returns a service without images, see [Service.Recover].
func New(c Config) *Service {
	return &Service{
		config: c, refs: make(map[string]string), images: make(map[string]*Image),
		pinned: make(map[string]map[string]bool), platform: platforms.Default(),
	}
}

// Recover models CheckImages of internal/cri/server/images/check.go. It skips images with incomplete content.
func (s *Service) Recover(ctx context.Context) error {
	all, err := s.config.Images.List(ctx)
	if err != nil {
		return fmt.Errorf("unable to list images: %w", err)
	}
	for _, img := range all {
		ok, _, _, _, err := images.Check(ctx, s.config.Content, img.Target, s.platform)
		if err != nil || !ok {
			continue
		}
		_ = s.UpdateImage(ctx, img.Name) // containerd logs the error
	}
	return nil
}

// UpdateImage models UpdateImage of internal/cri/server/images/image_pull.go. The event monitor
// (internal/cri/server/events.go, HandleEvent) calls it with the name in an image event. For an image that is not
// managed, it creates a record of the image ID and then sets the label.
func (s *Service) UpdateImage(ctx context.Context, name string) error {
	img, err := s.config.Images.Get(ctx, name)
	if errdefs.IsNotFound(err) {
		return s.update(ctx, name)
	}
	if err != nil {
		return fmt.Errorf("get image by reference: %w", err)
	}
	for label, value := range s.labels(name) {
		if img.Labels[label] == value {
			continue
		}
		config, err := img.Config(ctx, s.config.Content, s.platform)
		if err != nil {
			return fmt.Errorf("get image id: %w", err)
		}
		id := config.Digest.String()
		if err := s.createOrUpdate(ctx, id, img.Target, s.labels(name)); err != nil {
			return fmt.Errorf("create image id reference %q: %w", id, err)
		}
		if err := s.update(ctx, id); err != nil {
			return err
		}
		if err := s.createOrUpdate(ctx, name, img.Target, s.labels(name)); err != nil {
			return fmt.Errorf("create managed label: %w", err)
		}
		break
	}
	return s.update(ctx, name)
}

// labels models getLabels of internal/cri/server/images/image_pull.go.
func (s *Service) labels(name string) map[string]string {
	l := map[string]string{upstream.ImageLabel: upstream.Managed}
	if slices.Contains(s.config.PinnedImages, name) {
		l[upstream.PinnedLabel] = upstream.Pinned
	}
	return l
}

// createOrUpdate models createOrUpdateImageReference of internal/cri/server/images/image_pull.go, with the same steps.
func (s *Service) createOrUpdate(ctx context.Context, name string, target ocispec.Descriptor, labels map[string]string) error {
	img := images.Image{Name: name, Target: target, Labels: labels}
	_, err := s.config.Images.Create(ctx, img)
	if err == nil || !errdefs.IsAlreadyExists(err) {
		return err
	}
	old, err := s.config.Images.Get(ctx, name)
	if err != nil {
		return err
	}
	paths := []string{"target"}
	if old.Labels[upstream.ImageLabel] != labels[upstream.ImageLabel] {
		paths = append(paths, "labels."+upstream.ImageLabel)
	}
	if old.Labels[upstream.PinnedLabel] != labels[upstream.PinnedLabel] && labels[upstream.PinnedLabel] == upstream.Pinned {
		paths = append(paths, "labels."+upstream.PinnedLabel)
	}
	if old.Target.Digest == target.Digest && len(paths) < 2 {
		return nil
	}
	_, err = s.config.Images.Update(ctx, img, paths...)
	return err
}

// update models Store.Update of internal/cri/store/image/image.go. That function holds its lock while it reads, so that no
// lookup runs at the same time. Nothing depends on this.
func (s *Service) update(ctx context.Context, ref string) error {
	i, err := s.config.Images.Get(ctx, ref)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("get image from containerd: %w", err)
	}
	var img *Image
	if err == nil {
		if img, err = s.read(ctx, i); err != nil {
			return fmt.Errorf("get image info from containerd: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, existed := s.refs[ref]
	switch {
	case img == nil:
		if existed {
			s.drop(old, ref)
			delete(s.refs, ref)
		}
		return nil
	case existed && old == img.ID:
		s.pin(img.ID, ref, img.Pinned)
		return nil
	case existed:
		s.drop(old, ref)
	}
	s.refs[ref] = img.ID
	known := s.images[img.ID]
	if known == nil {
		s.images[img.ID] = img
	} else if !slices.Contains(known.References, ref) {
		known.References = reference.Sort(append(known.References, ref))
	}
	s.pin(img.ID, ref, img.Pinned)
	return nil
}

// pin models store.pin and store.unpin of internal/cri/store/image/image.go.
func (s *Service) pin(id, ref string, pinned bool) {
	if s.pinned[id] == nil {
		s.pinned[id] = make(map[string]bool)
	}
	if pinned {
		s.pinned[id][ref] = true
	} else {
		delete(s.pinned[id], ref)
	}
	s.images[id].Pinned = len(s.pinned[id]) > 0
}

// drop models store.delete of internal/cri/store/image/image.go.
func (s *Service) drop(id, ref string) {
	img := s.images[id]
	if img == nil {
		return
	}
	img.References = slices.DeleteFunc(img.References, func(r string) bool { return r == ref })
	if len(img.References) == 0 {
		delete(s.images, id)
		delete(s.pinned, id)
		return
	}
	s.pin(id, ref, false)
}

// read models Store.getImage of internal/cri/store/image/image.go.
func (s *Service) read(ctx context.Context, i images.Image) (*Image, error) {
	desc, err := i.Config(ctx, s.config.Content, s.platform)
	if err != nil {
		return nil, fmt.Errorf("get image config descriptor: %w", err)
	}
	b, err := content.ReadBlob(ctx, s.config.Content, desc)
	if err != nil {
		return nil, fmt.Errorf("read image config from content store: %w", err)
	}
	var spec ocispec.Image
	if err := json.Unmarshal(b, &spec); err != nil {
		return nil, fmt.Errorf("unmarshal image config: %w", err)
	}
	return &Image{
		ID: desc.Digest.String(), References: []string{i.Name},
		ChainID: identity.ChainID(slices.Clone(spec.RootFS.DiffIDs)),
		Pinned:  i.Labels[upstream.PinnedLabel] == upstream.Pinned, User: spec.Config.User,
	}, nil
}

// Resolve models LocalResolve of internal/cri/server/images/service.go.
func (s *Service) Resolve(name string) (Image, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := name
	if _, err := digest.Parse(name); err != nil {
		if ref, err := reference.ParseDockerRef(name); err == nil {
			id = s.refs[ref.String()]
		}
	}
	img := s.images[id]
	if img == nil {
		return Image{}, false
	}
	c := *img
	c.References = slices.Clone(img.References)
	return c, true
}

// List models ListImages of internal/cri/server/images/image_list.go.
func (s *Service) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Image
	for _, id := range slices.Sorted(maps.Keys(s.images)) {
		c := *s.images[id]
		c.References = slices.Clone(c.References)
		all = append(all, c)
	}
	return all
}

// RemoveImage models RemoveImage of internal/cri/server/images/image_remove.go. It removes all references of the image
// one after the other, and collects garbage with the last one.
func (s *Service) RemoveImage(ctx context.Context, name string) error {
	img, ok := s.Resolve(name)
	if !ok {
		return nil
	}
	for i, ref := range img.References {
		var opts []images.DeleteOpt
		if i == len(img.References)-1 {
			opts = append(opts, images.SynchronousDelete())
		}
		if err := s.config.Images.Delete(ctx, ref, opts...); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("failed to delete image reference %q for %q: %w", ref, img.ID, err)
		}
		if err := s.update(ctx, ref); err != nil {
			return fmt.Errorf("failed to update image reference %q for %q: %w", ref, img.ID, err)
		}
	}
	return nil
}
