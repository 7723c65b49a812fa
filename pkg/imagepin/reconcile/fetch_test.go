package reconcile

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/upstream"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/lease"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
)

// fetchingPuller fetches by calling fetch, and then records the key as a Puller does.
type fetchingPuller struct {
	d     *deepNode
	fetch func() error
	n     atomic.Int32
}

func (p *fetchingPuller) Repair(ctx context.Context, e imagepin.Entry) (outcome pull.Outcome, err error) {
	p.n.Add(1)
	if err := p.fetch(); err != nil {
		return pull.Failed, err
	}
	err = lease.With(ctx, p.d.Leases, lease.Pull, func(ctx context.Context) error {
		restored, err := p.d.store.PutIf(ctx, e, e.Record)
		if outcome = pull.Unneeded; restored {
			outcome = pull.Fetched
		}
		return err
	})
	return outcome, err
}

func (p *fetchingPuller) RepairBlob(context.Context, imagepin.Entry, digest.Digest) error {
	return p.fetch()
}

// lose removes the file of the first image's configuration, and returns the loss that a start finds and a function that
// writes the file again.
func (d *deepNode) lose(t *testing.T) (loss health.Loss, write func()) {
	t.Helper()
	file := d.File(d.images[0].Config.Digest)
	b, err := os.ReadFile(file)
	noError(t, err)
	noError(t, os.Remove(file))
	loaded, err := d.load(d.ctx)
	noError(t, err)
	if len(loaded.losses) != 1 {
		t.Fatalf("got losses %+v, want one", loaded.losses)
	}
	loss = loaded.losses[0]
	loss.Entry.Source = imagepin.SourceAdopted
	return loss, func() { noError(t, os.WriteFile(file, b, 0o400)) }
}

// TestFetchOne fetches a key whose configuration is gone. It is dropped only if its registry no longer has the image, and no
// pin means it and no other tool has pinned it. Otherwise it is damaged, and the fetch is retried, less often after some time. An image that was removed does
// not come back.
func TestFetchOne(t *testing.T) {
	for _, test := range []struct {
		name string
		// queued is how long the key has been in the queue.
		queued time.Duration
		pinned bool
		// labeled is whether the tag has the label of containerd's CRI for pinned images.
		labeled bool
		// fetch is the n-th fetch. write writes the configuration again.
		fetch   func(t *testing.T, d *deepNode, n int32, write func()) error
		ready   bool
		damaged bool
		fetches int32
		retry   time.Duration // after the last fetch
	}{
		{name: "fetched", fetch: fetched, ready: true, fetches: 1},
		{name: "denied", fetch: fails(errdefs.ErrPermissionDenied), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "gone", fetch: fails(pull.RegistryError{Err: errdefs.ErrNotFound}), fetches: 1},
		{name: "gone and pinned", pinned: true, fetch: fails(pull.RegistryError{Err: errdefs.ErrNotFound}), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "gone and pinned by another tool", labeled: true, fetch: fails(pull.RegistryError{Err: errdefs.ErrNotFound}), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "not found on the node", fetch: fails(errdefs.ErrNotFound), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "unavailable at first", ready: true, fetches: 3, fetch: func(t *testing.T, d *deepNode, n int32, write func()) error {
			if n < 3 {
				return errdefs.ErrUnavailable
			}
			return fetched(t, d, n, write)
		}},
		{name: "unavailable for long", fetch: fails(errdefs.ErrUnavailable), damaged: true, fetches: 1, queued: fetchFor, retry: repairLastFetch},
		{name: "the layer cannot be stored", fetch: fails(&os.LinkError{Op: "link", Old: "a", New: "b", Err: syscall.EEXIST}), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "the layer cannot be stored, over the socket", fetch: fails(errors.New("mkdir /a: file name too long")), damaged: true, fetches: 1, retry: repairLastRefused},
		{name: "disk full at first", ready: true, fetches: 2, fetch: func(t *testing.T, d *deepNode, n int32, write func()) error {
			if n < 2 {
				return &os.PathError{Op: "write", Path: "a", Err: syscall.ENOSPC}
			}
			return fetched(t, d, n, write)
		}},
		{name: "removed meanwhile", fetches: 1, fetch: func(t *testing.T, d *deepNode, n int32, write func()) error {
			noError(t, d.Images.Delete(d.ctx, "registry.example/a:1"))
			return fetched(t, d, n, write)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDeepNode(t)
			loss, write := d.lose(t)
			e := loss.Entry
			if test.labeled {
				d.pinByLabel(t, e)
			}
			p := &fetchingPuller{d: d}
			p.fetch = func() error { return test.fetch(t, d, p.n.Load(), write) }
			d.config.Puller = p
			d.config.Pinned = func(root digest.Digest) bool { return test.pinned && root == e.Root.Digest }
			retry := repairLast
			for retry == repairLast {
				retry = d.repairs.fetchOne(d.ctx, queued{Loss: loss, since: time.Now().Add(-test.queued)})
			}
			if _, ready := d.store.Get(e.Key); ready != test.ready || p.n.Load() != test.fetches || retry != test.retry {
				t.Errorf("ready %v after %d fetches, retry after %s, want %v after %d, %s", ready, p.n.Load(), retry, test.ready, test.fetches, test.retry)
			}
			if _, damaged := d.store.GetDamaged(e.Key); damaged != test.damaged {
				t.Errorf("got damaged %t, want %t", damaged, test.damaged)
			}
			img, err := d.Images.Get(d.ctx, e.Record)
			value := img.Labels[imagepin.KeyLabelName(e.Key)]
			if labelled := err == nil && value != ""; labelled != (test.ready || test.damaged) {
				t.Errorf("the record has the key's label: %v, want %v", labelled, test.ready || test.damaged)
			}
			if value != "" {
				recorded, err := imagepin.DecodeKeyLabel(imagepin.KeyLabelName(e.Key), value)
				if err != nil || recorded.DamagedAt.IsZero() == test.damaged {
					t.Errorf("got label %s, %v, want damaged %t", value, err, test.damaged)
				}
			}
			d.wantNothingLeft(t)
		})
	}
}

// pinByLabel pins the image of a key with a label on its tag, as an operator does.
func (d *deepNode) pinByLabel(t *testing.T, e imagepin.Entry) {
	t.Helper()
	label := images.Image{Name: e.Ref, Labels: map[string]string{upstream.PinnedLabel: upstream.Pinned}}
	_, err := d.Images.Update(d.ctx, label, "labels."+upstream.PinnedLabel)
	noError(t, err)
	_, err = d.store.Sync(d.ctx, e.Ref)
	noError(t, err)
}

func fetched(_ *testing.T, _ *deepNode, _ int32, write func()) error {
	write()
	return nil
}

func fails(err error) func(*testing.T, *deepNode, int32, func()) error {
	return func(*testing.T, *deepNode, int32, func()) error { return err }
}

// TestFetchQueue checks that nothing is fetched for a target without a runtime handler, nor for an image from a file.
func TestFetchQueue(t *testing.T) {
	d := newEmptyNode(t)
	pulled := imagepin.Entry{Key: imagepin.Key{Ref: "registry.example/a:1", Target: d.config.Runtimes().Default().Target}}
	if name, ok := d.repairs.fetchQueue(pulled); !ok || name != (queueName{"first", "registry.example"}) {
		t.Errorf("got queue %+v, %v", name, ok)
	}
	imported, foreign := pulled, pulled
	imported.Source = imagepin.SourceImported
	foreign.Target.Platform = "linux/riscv64"
	for _, e := range []imagepin.Entry{imported, foreign} {
		if name, ok := d.repairs.fetchQueue(e); ok {
			t.Errorf("%+v: got queue %+v, want none", e, name)
		}
	}
}

// waitUntil waits until a condition is met.
func (d *deepNode) waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for !done() {
		select {
		case <-time.After(time.Millisecond):
		case <-d.ctx.Done():
			t.Fatal("the repair did not end")
		}
	}
}

// TestFetchDoesNotDelayRepairs checks that a fetch from a registry that does not answer does not delay a fetch from
// another registry, and that the repairs of a start fetch.
func TestFetchDoesNotDelayRepairs(t *testing.T) {
	d := newDeepNode(t)
	loss, write := d.lose(t)
	p := &fetchingPuller{d: d}
	d.config.Puller = p
	release, blocked := make(chan struct{}), make(chan struct{})
	p.fetch = func() error {
		if p.n.Load() > 1 {
			write()
			return nil
		}
		close(blocked)
		<-release
		return errdefs.ErrPermissionDenied
	}
	hanging := loss
	hanging.Entry.Ref, hanging.Entry.Record = "elsewhere.example/a:1", "registry.example/b:1"
	hanging.Entry.RecordTarget = d.images[1].Manifest
	ctx, stop := context.WithCancel(d.ctx)
	d.repairs.add(ctx, hanging)
	<-blocked
	d.repairs.add(ctx, loss)
	d.waitUntil(t, func() bool { _, ready := d.store.Get(loss.Entry.Key); return ready })
	close(release)
	stop()
	d.repairs.wait()
}
