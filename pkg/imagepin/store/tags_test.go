package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"runtime"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// requests counts requests to containerd's image store.
type requests struct {
	reads, writes, fields int
}

// countingRecords counts requests to an image store.
type countingRecords struct {
	images.Store
	requests *requests
}

func (r countingRecords) Get(ctx context.Context, name string) (images.Image, error) {
	r.requests.reads++
	return r.Store.Get(ctx, name)
}

func (r countingRecords) Create(ctx context.Context, img images.Image) (images.Image, error) {
	r.requests.writes++
	return r.Store.Create(ctx, img)
}

func (r countingRecords) Update(ctx context.Context, img images.Image, fields ...string) (images.Image, error) {
	r.requests.writes++
	r.requests.fields += len(fields)
	return r.Store.Update(ctx, img, fields...)
}

// putOneMore records one more tag of a digest with count tags and syncs the written records. It returns the requests to
// containerd and the allocated bytes.
func putOneMore(t *testing.T, count int) (requests, uint64) {
	t.Helper()
	e := newEnv(t)
	put := e.tagsOf(t, count)(count)
	var n requests
	s := e.store
	s.Configuration().Records = ctdtest.Records{Store: countingRecords{s.Configuration().Records, &n}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if change, err := s.Put(e.ctx, "", put...); err != nil || !change.Wrote {
		t.Fatal(change, err)
	}
	for _, name := range []string{put[1].Ref, put[1].Record, put[1].ImageID.String()} {
		if unknown, err := s.Sync(e.ctx, name); err != nil || unknown != nil {
			t.Fatal(unknown, err)
		}
	}
	runtime.ReadMemStats(&after)
	return n, after.TotalAlloc - before.TotalAlloc
}

// TestCostOfOneMoreTag checks that one more tag of a digest needs the same number of requests, however many tags there
// are, and memory in proportion to their number, not to its square.
func TestCostOfOneMoreTag(t *testing.T) {
	const few, many = 50, 400
	wanted, small := putOneMore(t, few)
	got, big := putOneMore(t, many)
	if got != wanted {
		t.Errorf("requests to containerd with %d tags: %+v, with %d tags: %+v", few, wanted, many, got)
	}
	if want := (requests{reads: 10, writes: 1}); got != want {
		t.Errorf("got requests to containerd %+v, want %+v", got, want)
	}
	if limit := 2 * small * many / few; big > limit {
		t.Errorf("memory with %d tags: %d bytes, with %d tags: got %d bytes, want at most %d", few, small, many, big, limit)
	}
	t.Logf("%d tags: %d bytes, %d tags: %d bytes", few, small, many, big)
}

// TestRepairOfManyTags checks that Sync repairs the labels of a record with many tags, and does not change the records
// of the tags.
func TestRepairOfManyTags(t *testing.T) {
	const count = 20
	e := newEnv(t)
	of := e.tagsOf(t, count)
	var want []imagepin.Key
	for i := range count {
		want = append(want, keysOf(of(i))...)
	}
	record := of(0)[0].Record
	before := e.state(t)
	if _, err := e.Images.Update(e.ctx, images.Image{
		Name: record, Labels: map[string]string{CRIManagedLabel: CRIManagedValue},
	}, "labels"); err != nil {
		t.Fatal(err)
	}
	e.records.writes = 0
	if _, err := e.store.Sync(e.ctx, record); err != nil {
		t.Fatal(err)
	}
	if e.records.writes != 1 || lines(e.state(t)) != lines(before) {
		t.Errorf("got %d writes, want 1, and records\n%s", e.records.writes, lines(e.state(t)))
	}
	e.restart()
	if unknown := e.load(t); len(unknown) > 0 {
		t.Errorf("unaccounted records: %q", unknown)
	}
	// The digest has one key for all its tags.
	keys := map[imagepin.Key]bool{}
	for _, k := range want {
		keys[k] = true
	}
	if got := e.keys(); len(got) != len(keys) || len(keys) != count+1 {
		t.Errorf("got %d keys, want %d", len(got), count+1)
	}
}

// TestMovedTagIsNotMovedBack checks that a Sync of the old digest does not move back a tag that another tool moved.
func TestMovedTagIsNotMovedBack(t *testing.T) {
	e := newEnv(t)
	of := e.tagsOf(t, 2)
	other := e.image("other")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, other, native)
	e.move(t, of(0)[1].Ref, other)
	if _, err := e.store.Sync(e.ctx, of(0)[0].Record); err != nil { // before the event of the tag
		t.Fatal(err)
	}
	if got := e.Records(t)[of(0)[1].Ref].Target.Digest; got != other.root.Digest {
		t.Errorf("tag: got digest %s, want %s", got, other.root.Digest)
	}
}
