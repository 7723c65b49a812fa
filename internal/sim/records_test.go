package sim

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	bolt "go.etcd.io/bbolt"

	eventsapi "github.com/containerd/containerd/api/events"
)

// inTx marks the context of a transaction, in which no call parks.
type inTx struct{}

// imageStore is containerd's image store for a process.
type imageStore struct {
	images.Store
	w     *world
	owner *process
	name  string
}

func (i *imageStore) step(ctx context.Context, format string, args ...any) error {
	if ctx.Value(inTx{}) != nil {
		return nil
	}
	return i.w.step(ctx, i.owner, i.name+"."+format, args...)
}

// daemonRemoved records a removal by imagepin's daemon after a write of another tool.
func (w *world) daemonRemoved(ctx context.Context) {
	if actorOf(ctx) == "daemon" && w.facts.otherTools.Load() {
		w.facts.toolAt.Store(int64(w.steps))
	}
}

// after is an optional step after a write, which can delay the next action of the process.
func (w *world) after(ctx context.Context, owner *process, what string) error {
	if ctx.Value(inTx{}) != nil || !w.some(ctx, w.plan.after, what) {
		return nil
	}
	return w.step(ctx, owner, "%s is done", what)
}

func (i *imageStore) Get(ctx context.Context, name string) (images.Image, error) {
	if err := i.step(ctx, "get %s", name); err != nil {
		return images.Image{}, err
	}
	return i.Store.Get(ctx, name)
}

func (i *imageStore) List(ctx context.Context, fs ...string) ([]images.Image, error) {
	if err := i.step(ctx, "list"); err != nil {
		return nil, err
	}
	began := i.w.steps
	all, err := i.Store.List(ctx, fs...)
	if i.name == "pins" {
		if err := i.step(ctx, "list is done"); err != nil {
			return nil, err
		}
		i.w.facts.pinsListed(began, i.w.steps)
	}
	return all, err
}

func (i *imageStore) Create(ctx context.Context, img images.Image) (images.Image, error) {
	if err := i.step(ctx, "create %s → %s", img.Name, img.Target.Digest); err != nil {
		return images.Image{}, err
	}
	var answer error
	made, err := i.Store.Create(ctx, img)
	if err == nil && i.name == "pins" && img.Name == lockRecord {
		done := i.w.lockWritten(ctx, img.Target.Digest)
		defer func() { done(answer) }()
	} else if err == nil && i.name == "pins" {
		i.w.facts.pins.Store(img.Name, true)
		done := i.w.facts.pinWritten(img.Name, i.w.steps, img.Target.Digest)
		defer func() { done(i.w.steps, answer) }()
	}
	if answer = i.w.after(ctx, i.owner, i.name+".create "+img.Name); answer != nil {
		return made, answer
	}
	return made, err
}

func (i *imageStore) Update(ctx context.Context, img images.Image, paths ...string) (images.Image, error) {
	slices.Sort(paths)
	if err := i.step(ctx, "update %s → %s", img.Name, img.Target.Digest); err != nil {
		return images.Image{}, err
	}
	if now, err := i.Store.Get(ctx, img.Name); err == nil && now.Target.Digest != img.Target.Digest &&
		slices.Contains(paths, "target") && strings.HasPrefix(actorOf(ctx), "cri") {
		i.w.facts.movedByCRI.Store(img.Name, true)
	}
	var answer error
	made, err := i.Store.Update(ctx, img, paths...)
	if err == nil && i.name == "pins" && img.Name == lockRecord {
		done := i.w.lockWritten(ctx, img.Target.Digest)
		defer func() { done(answer) }()
	} else if err == nil && i.name == "pins" {
		done := i.w.facts.pinWritten(img.Name, i.w.steps, made.Target.Digest)
		defer func() { done(i.w.steps, answer) }()
	}
	if answer = i.w.after(ctx, i.owner, i.name+".update "+img.Name); answer != nil {
		return made, answer
	}
	return made, err
}

func (i *imageStore) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) (answer error) {
	if err := i.step(ctx, "delete %s", name); err != nil {
		return err
	}
	var o images.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if err := i.Store.Delete(ctx, name, opts...); err != nil {
		return err
	}
	if i.name == "pins" && name == lockRecord {
		done := i.w.lockWritten(ctx, "")
		defer func() { done(answer) }()
	} else if i.name == "pins" {
		done := i.w.facts.pinWritten(name, i.w.steps, "")
		defer func() { done(i.w.steps, answer) }()
	}
	i.w.daemonRemoved(ctx)
	defer i.w.daemonRemoved(ctx) // the index still has the keys of the record until the answer comes
	if !o.Synchronous {
		return i.w.after(ctx, i.owner, i.name+".delete "+name)
	}
	if err := i.step(ctx, "collect after delete %s", name); err != nil {
		return err
	}
	return i.w.collect(ctx)
}

// records implements store.Records. It has transactions if imagepin runs in containerd, and none over its socket.
type records struct{ imageStore }

func (r *records) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	if r.w.choice.socket {
		return fn(ctx, r)
	}
	if err := r.step(ctx, "transaction"); err != nil {
		return err
	}
	n := &txStore{Store: r.Store, w: r.w}
	if err := r.w.db.Update(func(tx *bolt.Tx) error {
		return fn(context.WithValue(boltutil.WithTransaction(ctx, tx), inTx{}, true), n)
	}); err != nil {
		return err
	}
	if n.deletes {
		defer r.w.daemonRemoved(ctx) // the index still has the keys of the records until the transaction is done
	}
	if err := r.w.after(ctx, r.owner, "transaction"); err != nil {
		return err
	}
	for _, e := range n.events {
		if err := r.w.bus.Publish(ctx, e.topic, e.event); err != nil {
			return err
		}
	}
	return nil
}

// txStore prints the writes of a transaction and keeps their events.
type txStore struct {
	images.Store
	w       *world
	events  []txEvent
	deletes bool
}

type txEvent struct {
	topic string
	event events.Event
}

func (n *txStore) Create(ctx context.Context, img images.Image) (images.Image, error) {
	img, err := n.Store.Create(ctx, img)
	n.w.write(actorOf(ctx), "  creates %s → %s%s", img.Name, img.Target.Digest, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/create", &eventsapi.ImageCreate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *txStore) Update(ctx context.Context, img images.Image, paths ...string) (images.Image, error) {
	slices.Sort(paths)
	img, err := n.Store.Update(ctx, img, paths...)
	n.w.write(actorOf(ctx), "  updates %s → %s%s", img.Name, img.Target.Digest, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/update", &eventsapi.ImageUpdate{Name: img.Name, Labels: img.Labels}})
	}
	return img, err
}

func (n *txStore) Delete(ctx context.Context, name string, opts ...images.DeleteOpt) error {
	n.deletes = true
	n.w.daemonRemoved(ctx)
	err := n.Store.Delete(ctx, name, opts...)
	n.w.write(actorOf(ctx), "  deletes %s%s", name, suffix(err))
	if err == nil {
		n.events = append(n.events, txEvent{"/images/delete", &eventsapi.ImageDelete{Name: name}})
	}
	return err
}

func suffix(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
