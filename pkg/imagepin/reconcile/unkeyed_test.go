package reconcile

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// managed are the labels by which containerd's CRI marks a record as its own.
var managed = map[string]string{"io.cri-containerd.image": "managed"}

// unkeyedNode is a node with the content of one image.
type unkeyedNode struct {
	*ctdtest.Node
	*Reconciler
	ctx        context.Context // with a lease
	store      *store.Store
	unreadable string // the name of a record that cannot be read
	image      ctdtest.Image
	id         string
}

func newUnkeyedNode(t *testing.T) *unkeyedNode {
	t.Helper()
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	u := &unkeyedNode{Node: n}
	c := storeConfig(n, runtimes)
	u.store = store.New(c)
	c.Records = ctdtest.Records{Store: ctdtest.Images{Store: n.Images, Before: ctdtest.On("Get", func(name string) error {
		if name == u.unreadable {
			return errors.New("unreadable")
		}
		return nil
	})}}
	u.Reconciler = reconcilerOf(n, c, u.store)
	blobs := ctdtest.Blobs{}
	u.image = blobs.Image("linux/amd64", "app", nil)
	u.id = u.image.Config.Digest.String()
	ctx, done := n.Lease(t)
	t.Cleanup(done)
	u.ctx = ctx
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, u.image, "first")
	return u
}

// create creates a record of the image that containerd's CRI has labeled.
func (u *unkeyedNode) create(t *testing.T, name string) {
	t.Helper()
	_, err := u.Images.Create(u.ctx, images.Image{Name: name, Target: u.image.Manifest, Labels: managed})
	noError(t, err)
	noError(t, u.syncRecord(u.ctx, name))
}

// remove removes a record.
func (u *unkeyedNode) remove(t *testing.T, name string) {
	t.Helper()
	noError(t, u.Images.Delete(u.ctx, name))
	noError(t, u.syncRecord(u.ctx, name))
}

// wantRecords checks the names of the records.
func (u *unkeyedNode) wantRecords(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(u.Records(t))); !slices.Equal(got, want) {
		t.Errorf("got records %q, want %q", got, want)
	}
}

// TestTwoRecordsNeedIDRecord removes one of two records without a key, and then the record of their image ID. That record
// is created again for the other one. Nothing is noted about records that are gone.
func TestTwoRecordsNeedIDRecord(t *testing.T) {
	u := newUnkeyedNode(t)
	u.create(t, "one name")
	u.create(t, "other name")
	u.remove(t, "other name")
	u.remove(t, u.id)
	u.wantRecords(t, "one name", u.id)
	u.remove(t, "one name")
	u.remove(t, u.id)
	u.wantRecords(t)
	if len(u.unkeyed.ids) > 0 {
		t.Errorf("got %v noted, want nothing", u.unkeyed.ids)
	}
}

// TestUnreadableRecordStaysNoted removes the record of an image ID while a record that needs it cannot be read. The record
// of the image ID is created again after a later event.
func TestUnreadableRecordStaysNoted(t *testing.T) {
	u := newUnkeyedNode(t)
	u.create(t, "one name")
	u.unreadable = "one name"
	noError(t, u.Images.Delete(u.ctx, u.id))
	if err := u.syncRecord(u.ctx, u.id); err == nil {
		t.Error("a record cannot be read, but no error is returned")
	}
	u.unreadable = ""
	noError(t, u.syncRecord(u.ctx, u.id))
	u.wantRecords(t, "one name", u.id)
}

// TestIDRecordWithoutConfiguration creates the record of an image ID whose configuration is gone. The image is not listed,
// but its record is removed after the grace time, unless the configuration is there again.
func TestIDRecordWithoutConfiguration(t *testing.T) {
	for name, back := range map[string]bool{"gone": false, "there again": true} {
		t.Run(name, func(t *testing.T) {
			u := newUnkeyedNode(t)
			id := u.image.Config.Digest
			config, err := content.ReadBlob(u.ctx, u.Content, u.image.Config)
			noError(t, err)
			noError(t, u.Content.Delete(u.ctx, id))
			u.create(t, u.id)
			if got := u.store.Unkeyed(); !slices.Equal(got, []digest.Digest{id}) || len(u.store.Untagged()) > 0 {
				t.Errorf("got records without a key %v and images listed without a tag %v, want only the record", got, u.store.Untagged())
			}
			if back {
				noError(t, content.WriteBlob(u.ctx, u.Content, "again", bytes.NewReader(config), u.image.Config))
			}
			removed, err := u.store.RemoveUntagged(u.ctx, id, time.Now())
			noError(t, err)
			if removed == back {
				t.Errorf("removed: got %t, want %t", removed, !back)
			}
		})
	}
}

// TestListingForgetsRecordsThatAreGone removes records without an event. The next listing forgets what was noted about
// them.
func TestListingForgetsRecordsThatAreGone(t *testing.T) {
	u := newUnkeyedNode(t)
	u.create(t, "one name")
	u.adopter.awaitingUnpack[goodRef] = []store.Snapshot{{Snapshotter: "first", ChainID: u.image.ChainID}}
	for _, name := range []string{"one name", u.id} {
		noError(t, u.Images.Delete(u.ctx, name))
	}
	if len(u.unkeyed.ids) != 1 {
		t.Errorf("before the listing: got %v noted, want one record", u.unkeyed.ids)
	}
	_, err := u.load(u.ctx)
	noError(t, err)
	if len(u.unkeyed.ids) > 0 || len(u.adopter.awaitingUnpack) > 0 {
		t.Errorf("after the listing: got %v and %v noted, want nothing", u.unkeyed.ids, u.adopter.awaitingUnpack)
	}
}

// TestIDRecordWithTargetOfAnotherRecord pulls an image. containerd's CRI then gives the record of its image ID the target
// of a record that cannot be adopted, which has the same configuration. After the last key is removed, the record of the
// image ID gets no event. The next list of the records notes it, and it is removed when it is the only record left.
func TestIDRecordWithTargetOfAnotherRecord(t *testing.T) {
	u := newUnkeyedNode(t)
	pulled, other := u.index(t, "one"), u.index(t, "other")
	const tag, name = "registry.example/app:1", "Build 17"
	byDigest := "registry.example/app@" + pulled.Digest.String()
	e := imagepin.Entry{
		Key: imagepin.Key{Ref: tag, Target: u.config.Runtimes().Default().Target}, Root: pulled, Manifest: u.image.Manifest.Digest,
		ImageID: u.image.Config.Digest, ChainID: u.image.ChainID, Source: imagepin.SourcePull, RecordTarget: pulled, Record: byDigest,
	}
	_, err := u.store.Put(u.ctx, "", e)
	noError(t, err)
	_, err = u.Images.Create(u.ctx, images.Image{Name: name, Target: other, Labels: managed})
	noError(t, err)
	_, err = u.Images.Update(u.ctx, images.Image{Name: u.id, Target: other}, "target")
	noError(t, err)
	noError(t, u.syncRecord(u.ctx, u.id))
	noError(t, u.syncUnkeyed(u.ctx))
	if all := u.store.Untagged(); len(all) > 0 {
		t.Errorf("got images without a key %v before the removal, want none", all)
	}
	_, err = u.store.Remove(u.ctx, e.Key)
	noError(t, err)
	for _, event := range []string{tag, byDigest} {
		noError(t, u.syncRecord(u.ctx, event))
	}
	noError(t, u.syncUnkeyed(u.ctx))
	if _, listed := u.store.FindUntagged(u.id); !listed {
		t.Error("the image is not listed")
	}
	u.wantRecords(t, name, u.id)
	noError(t, u.Images.Delete(u.ctx, name))
	removed, err := u.store.RemoveUntagged(u.ctx, u.image.Config.Digest, time.Now())
	if err != nil || !removed {
		t.Errorf("got removed %v, %v, want true", removed, err)
	}
	u.wantRecords(t)
}

// TestTagOfIncompleteImage creates a tag whose content is incomplete. Its event finds nothing to adopt, and there is no event
// of the record when the content is complete again. The next list of the records adopts the tag.
func TestTagOfIncompleteImage(t *testing.T) {
	for _, missing := range []string{"manifest", "configuration"} {
		t.Run(missing, func(t *testing.T) {
			u := newUnkeyedNode(t)
			u.config.Maker, u.config.Retained = leasing{node: u.Node, store: u.store, before: new(func())}, make(syncs, 1)
			desc := map[string]ocispec.Descriptor{"manifest": u.image.Manifest, "configuration": u.image.Config}[missing]
			blob, err := content.ReadBlob(u.ctx, u.Content, desc)
			noError(t, err)
			info, err := u.Content.Info(u.ctx, desc.Digest)
			noError(t, err)
			noError(t, u.Content.Delete(u.ctx, desc.Digest))
			const tag = "registry.example/app:1"
			key := imagepin.Key{Ref: tag, Target: u.config.Runtimes().Default().Target}
			u.create(t, tag)
			noError(t, u.syncUnkeyed(u.ctx))
			if e, ok := u.store.Get(key); ok {
				t.Errorf("without its %s: got key %v, want none", missing, e)
			}
			noError(t, content.WriteBlob(u.ctx, u.Content, "again", bytes.NewReader(blob), desc, content.WithLabels(info.Labels)))
			noError(t, u.syncUnkeyed(u.ctx))
			if _, ok := u.store.Get(key); !ok {
				t.Errorf("with its %s again: the tag has no key", missing)
			}
			u.wantRecords(t, tag, "registry.example/app@"+u.image.Manifest.Digest.String(), u.id)
		})
	}
}

// TestListUnpacksNothing lists a tag whose image is not unpacked, and one that cannot be read. Neither is unpacked or logged
// with each list: their events have done that.
func TestListUnpacksNothing(t *testing.T) {
	u := newUnkeyedNode(t)
	noError(t, u.Snapshotter("first").Remove(u.ctx, u.image.ChainID.String()))
	broken := u.image.Manifest
	broken.Digest = u.image.Config.Digest
	for name, target := range map[string]ocispec.Descriptor{"registry.example/app:1": u.image.Manifest, "registry.example/app:2": broken} {
		_, err := u.Images.Create(u.ctx, images.Image{Name: name, Target: target})
		noError(t, err)
	}
	logger, hook := logtest.NewNullLogger()
	noError(t, u.syncUnkeyed(log.WithLogger(u.ctx, logrus.NewEntry(logger))))
	if all := u.repairs.queues; len(all) > 0 || len(u.store.Images()) > 0 {
		t.Errorf("got %d queues of repairs and images %v, want none", len(all), u.store.Images())
	}
	for _, entry := range hook.AllEntries() {
		t.Errorf("logged %q", entry.Message)
	}
}

// index writes an index of the image. Indexes with other texts have other digests.
func (u *unkeyedNode) index(t *testing.T, text string) ocispec.Descriptor {
	t.Helper()
	blobs := ctdtest.Blobs{}
	index := blobs.AddJSON(ocispec.MediaTypeImageIndex, ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{u.image.Manifest}, Annotations: map[string]string{"text": text},
	})
	u.Write(u.ctx, t, blobs)
	return index
}

// noEvents is a subscriber that receives no events.
type noEvents struct{}

func (noEvents) Subscribe(context.Context, ...string) (<-chan *events.Envelope, <-chan error) {
	return nil, nil
}

// TestNoteUnkeyed creates the record of an image ID without an event while Run runs. NoteUnkeyed makes Run note it. It
// fails if Run does not run and the context has ended.
func TestNoteUnkeyed(t *testing.T) {
	u := newUnkeyedNode(t)
	u.config.Events, u.config.Retained = noEvents{}, make(syncs)
	ctx, cancel := context.WithCancel(u.ctx)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- u.Run(ctx, func() { close(ready) }) }()
	receive(t, ready)
	_, err := u.Images.Create(u.ctx, images.Image{Name: u.id, Target: u.image.Manifest, Labels: managed})
	noError(t, err)
	noError(t, u.NoteUnkeyed(ctx))
	if _, listed := u.store.FindUntagged(u.id); !listed {
		t.Error("the image is not listed")
	}
	cancel()
	noError(t, receive(t, ended))
	if err := u.NoteUnkeyed(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
