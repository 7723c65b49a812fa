package reconcile

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/platforms"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// managed are the labels by which containerd's CRI marks a record as its own.
var managed = map[string]string{"io.cri-containerd.image": "managed"}

// unreadable is an image store that cannot read one record while name is set.
type unreadable struct {
	images.Store
	name string
}

func (u *unreadable) Get(ctx context.Context, name string) (images.Image, error) {
	if name == u.name {
		return images.Image{}, errors.New("unreadable")
	}
	return u.Store.Get(ctx, name)
}

// unkeyedNode is a node with the content of one image.
type unkeyedNode struct {
	*ctdtest.Node
	*Reconciler
	ctx     context.Context
	store   *store.Store
	records *unreadable
	image   ctdtest.Image
	id      string
}

func newUnkeyedNode(t *testing.T) *unkeyedNode {
	t.Helper()
	n := ctdtest.New(t, "first")
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{{Name: "runc", Snapshotter: "first"}},
		runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	noError(t, err)
	u := &unkeyedNode{Node: n, ctx: n.Context(t), records: &unreadable{Store: n.Images}}
	c := storeConfig(n, runtimes)
	u.store = store.New(c)
	c.Records = records{u.records}
	u.Reconciler = reconcilerOf(n, c, u.store)
	blobs := ctdtest.Blobs{}
	u.image = blobs.Image("linux/amd64", "app", nil)
	u.id = u.image.Config.Digest.String()
	ctx, done := n.Lease(t)
	n.Write(ctx, t, blobs)
	t.Cleanup(done)
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
	if len(u.unkeyed) > 0 {
		t.Errorf("got %v noted, want nothing", u.unkeyed)
	}
}

// TestUnreadableRecordStaysNoted removes the record of an image ID while a record that needs it cannot be read. The record
// of the image ID is created again after a later event.
func TestUnreadableRecordStaysNoted(t *testing.T) {
	u := newUnkeyedNode(t)
	u.create(t, "one name")
	u.records.name = "one name"
	noError(t, u.Images.Delete(u.ctx, u.id))
	if err := u.syncRecord(u.ctx, u.id); err == nil {
		t.Error("a record cannot be read, but no error is returned")
	}
	u.records.name = ""
	noError(t, u.syncRecord(u.ctx, u.id))
	u.wantRecords(t, "one name", u.id)
}

// TestListingForgetsRecordsThatAreGone removes records without an event. The next listing forgets what was noted about
// them.
func TestListingForgetsRecordsThatAreGone(t *testing.T) {
	u := newUnkeyedNode(t)
	u.create(t, "one name")
	u.awaitingUnpack[goodRef] = []snapshot{snapshotOf("first", u.image.ChainID)}
	for _, name := range []string{"one name", u.id} {
		noError(t, u.Images.Delete(u.ctx, name))
	}
	if len(u.unkeyed) != 1 {
		t.Errorf("before the listing: got %v noted, want one record", u.unkeyed)
	}
	_, err := u.load(u.ctx)
	noError(t, err)
	if len(u.unkeyed) > 0 || len(u.awaitingUnpack) > 0 {
		t.Errorf("after the listing: got %v and %v noted, want nothing", u.unkeyed, u.awaitingUnpack)
	}
}
