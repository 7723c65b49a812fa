package reconcile

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	eventsapi "github.com/containerd/containerd/api/events"

	"github.com/imagepin/imagepin/internal/failpoint"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// adoptBatch is how many images are adopted in one transaction.
const adoptBatch = 50

// Subscriber is containerd's event service.
type Subscriber interface {
	Subscribe(ctx context.Context, filters ...string) (ch <-chan *events.Envelope, errs <-chan error)
}

// Config is what a Reconciler works with. All fields are required.
type Config struct {
	Store    *store.Store
	Puller   *pull.Puller
	Content  content.Store
	Leases   leases.Manager
	Events   Subscriber
	Runtimes *runtimeplatform.Set
	// Namespace is that of the CRI's images; events of others are not ours.
	Namespace string
}

// Reconciler keeps the index in step with containerd.
type Reconciler struct {
	Config
	started bool
}

// New makes a reconciler.
func New(c Config) *Reconciler { return &Reconciler{Config: c} }

// Run builds the index, calls ready, adopts what other tools have put on the
// node, and follows their changes until ctx ends. It subscribes before it
// lists, so that nothing falls between. It is run again, one after the other,
// where it lost track.
func (r *Reconciler) Run(ctx context.Context, ready func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	changes, failed := r.Events.Subscribe(ctx, `topic~="^/images/"`)
	if !r.started {
		// Later, there are the leases of calls that are under way.
		if err := pull.DeleteLeftovers(ctx, r.Leases); err != nil {
			return err
		}
		r.started = true
	}
	found, err := r.Store.Load(ctx)
	if err != nil {
		return err
	}
	if err := r.adoptAll(ctx, found.Unexplained, found.Have); err != nil {
		return err
	}
	ready()
	var behind errgroup.Group
	defer func() { err = errors.Join(err, behind.Wait()) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	behind.Go(func() error {
		r.heal(ctx, found)
		return nil
	})
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("follow image events: %w", err)
		case e := <-changes:
			if name := r.image(ctx, e); name != "" {
				r.Record(ctx, name)
			}
		}
	}
}

// image gives the name of the record that an event is about.
func (r *Reconciler) image(ctx context.Context, e *events.Envelope) string {
	if e == nil || e.Namespace != r.Namespace {
		return ""
	}
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		log.G(ctx).WithError(err).WithField("topic", e.Topic).Warn("cannot read an image event")
		return ""
	}
	switch event := v.(type) {
	case *eventsapi.ImageCreate:
		return event.Name
	case *eventsapi.ImageUpdate:
		return event.Name
	case *eventsapi.ImageDelete:
		return event.Name
	}
	return ""
}

// Record looks at one image record as it is now. It does not fail: what cannot
// be mended is logged, and looked at again with the next change or start.
func (r *Reconciler) Record(ctx context.Context, name string) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).WithField("image", name).Errorf("panic while reconciling: %v\n%s", p, debug.Stack())
		}
	}()
	unknown, err := r.Store.Sync(ctx, name)
	if err == nil && unknown != nil {
		var have *store.Inventory
		if have, err = r.Store.Inventory(ctx); err == nil {
			err = r.adoptAll(ctx, []images.Image{*unknown}, have)
		}
	}
	if err != nil && ctx.Err() == nil {
		log.G(ctx).WithError(err).WithField("image", name).Error("cannot reconcile an image record")
	}
}

// adoptAll gives keys to the images that others have put on the node.
func (r *Reconciler) adoptAll(ctx context.Context, unknown []images.Image, have *store.Inventory) error {
	unknown = slices.DeleteFunc(unknown, func(img images.Image) bool {
		_, ok := adoptable(img)
		return !ok
	})
	if len(unknown) == 0 {
		return nil
	}
	for batch := range slices.Chunk(unknown, adoptBatch) {
		var entries []imagepin.Entry
		for _, img := range batch {
			found, err := r.adopt(ctx, img, have)
			if err != nil {
				log.G(ctx).WithError(err).WithField("image", img.Name).Warn("an image is left alone that cannot be read")
				continue
			}
			for _, e := range found {
				// What cannot be written (a user of 4 KB, say) must not keep
				// the others from being adopted, and the CRI from starting.
				if _, _, err := imagepin.EncodeKeyLabel(e); err != nil {
					log.G(ctx).WithError(err).WithField("image", img.Name).Warn("an image is left alone that cannot be recorded")
					continue
				}
				entries = append(entries, e)
			}
		}
		if len(entries) == 0 {
			continue
		}
		failpoint.Reach("adopt.found")
		if _, err := r.Store.Put(ctx, "", entries...); err != nil {
			return err
		}
		failpoint.Reach("adopt.recorded")
	}
	return nil
}

// adoptable tells whether a record's name is a reference that a pod could use.
// An image ID is not: it goes with its references.
func adoptable(img images.Image) (reference.Named, bool) {
	if _, err := digest.Parse(img.Name); err == nil {
		return nil, false
	}
	ref, err := reference.ParseDockerRef(img.Name)
	if err != nil || ref.String() != img.Name {
		return nil, false
	}
	return ref, true
}

// adopt finds the targets that an image is unpacked for. Where it is not
// unpacked for the default target but could be, it is: that is where stock
// would start it.
func (r *Reconciler) adopt(ctx context.Context, img images.Image, have *store.Inventory) ([]imagepin.Entry, error) {
	ref, _ := adoptable(img)
	var entries []imagepin.Entry
	for _, t := range r.Runtimes.Targets() {
		rt, ok := r.Runtimes.ForTarget(t)
		if !ok {
			continue
		}
		e, manifest, err := pull.DescribeLocal(ctx, r.Content, img.Target, rt)
		if errdefs.IsNotFound(err) {
			continue // this platform is not on the node
		}
		if err != nil {
			return nil, err
		}
		e.Key = imagepin.Key{Ref: ref.String(), Target: t}
		e.Root, e.Source, e.ReadyAt = img.Target, r.source(ctx, manifest), img.UpdatedAt
		e.RecordTarget = pull.RecordTarget(ctx, r.Content, img.Target, manifest, rt)
		if e.Record, err = store.RecordName(ref, e.RecordTarget.Digest); err != nil {
			return nil, err
		}
		if have.HasSnapshot(t.Snapshotter, e.ChainID) {
			entries = append(entries, e)
			continue
		}
		if t == r.Runtimes.Default().Target {
			err := r.Puller.Unpack(ctx, e)
			if err == nil {
				entries = append(entries, e)
			} else if !errdefs.IsNotFound(err) && !errors.Is(err, context.Canceled) {
				log.G(ctx).WithError(err).WithField("image", img.Name).Warn("cannot unpack an image that is on the node")
			}
		}
	}
	return entries, nil
}

// source tells whether another tool pulled an image or loaded it from a file:
// containerd notes on every blob which registry it came from.
func (r *Reconciler) source(ctx context.Context, manifest ocispec.Descriptor) imagepin.Source {
	info, err := r.Content.Info(ctx, manifest.Digest)
	if err != nil {
		return imagepin.SourceAdopted // the stricter of the two
	}
	for label := range info.Labels {
		if strings.HasPrefix(label, labels.LabelDistributionSource) {
			return imagepin.SourceAdopted
		}
	}
	return imagepin.SourceImported
}
