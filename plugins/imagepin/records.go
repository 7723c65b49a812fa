package imagepin

import (
	"context"

	eventsapi "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/log"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/failpoint"
)

// records is containerd's image store in this process. Several records change
// in one transaction of its database, which takes a tenth of the time of as
// many transactions, and is all or nothing.
type records struct {
	images.Store
	db        *metadata.DB
	publisher events.Publisher
}

func newRecords(db *metadata.DB, publisher events.Publisher) *records {
	return &records{Store: metadata.NewImageStore(db), db: db, publisher: publisher}
}

// Atomically implements store.Records. containerd publishes nothing from inside
// a transaction, so the events are published here once it is committed: the CRI
// service behind lives by them.
//
// Nothing but image records and leases may be used by fn: content and snapshots take
// locks in the opposite order and stop the database for good.
func (r *records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	var noted *notes
	if err := r.db.Update(func(tx *bolt.Tx) error {
		noted = &notes{Store: r.Store}
		return fn(boltutil.WithTransaction(ctx, tx), noted)
	}); err != nil {
		return err
	}
	failpoint.Reach("store.committed")
	for _, n := range noted.events {
		if err := r.publisher.Publish(ctx, n.topic, n.event); err != nil {
			log.G(ctx).WithError(err).WithField("topic", n.topic).Warn("cannot publish an image event")
		}
	}
	failpoint.Reach("store.notified")
	return nil
}

// notes is an image store that notes the events of what is written to it.
type notes struct {
	images.Store
	events []note
}

type note struct {
	topic string
	event events.Event
}

func (n *notes) Create(ctx context.Context, img images.Image) (images.Image, error) {
	img, err := n.Store.Create(ctx, img)
	if err == nil {
		n.events = append(n.events, note{"/images/create", &eventsapi.ImageCreate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *notes) Update(ctx context.Context, img images.Image, fieldpaths ...string) (images.Image, error) {
	img, err := n.Store.Update(ctx, img, fieldpaths...)
	if err == nil {
		n.events = append(n.events, note{"/images/update", &eventsapi.ImageUpdate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *notes) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	err := n.Store.Delete(ctx, name, opts...)
	if err == nil {
		n.events = append(n.events, note{"/images/delete", &eventsapi.ImageDelete{Name: name}})
	}
	return err
}
