package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"runtime"
	"testing"

	"github.com/containerd/containerd/v2/core/images"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// effort is what is asked of containerd's image store.
type effort struct {
	reads, writes, fields int
}

// weighed counts what is asked of an image store.
type weighed struct {
	Records
	effort *effort
}

func (r weighed) Atomically(ctx context.Context, fn func(context.Context, images.Store) error) error {
	return r.Records.Atomically(ctx, func(ctx context.Context, _ images.Store) error { return fn(ctx, r) })
}

func (r weighed) Get(ctx context.Context, name string) (images.Image, error) {
	r.effort.reads++
	return r.Records.Get(ctx, name)
}

func (r weighed) Create(ctx context.Context, img images.Image) (images.Image, error) {
	r.effort.writes++
	return r.Records.Create(ctx, img)
}

func (r weighed) Update(ctx context.Context, img images.Image, fields ...string) (images.Image, error) {
	r.effort.writes++
	r.effort.fields += len(fields)
	return r.Records.Update(ctx, img, fields...)
}

// oneMore records one more tag of a digest that has count of them, and takes
// notice of the records that were written. It gives what that asked of containerd,
// and how many bytes of memory it took.
func oneMore(t *testing.T, count int) (effort, uint64) {
	t.Helper()
	e := newEnv(t)
	put := e.tagsOf(t, count)(count)
	var n effort
	s := e.store
	s.Records = weighed{s.Records, &n}
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

// One more tag of a digest reads and writes the same records however many there
// are: its own. What it costs in memory grows with the entries of the image, not
// with their square.
func TestOneMoreTagOfMany(t *testing.T) {
	const few, many = 50, 400
	wanted, small := oneMore(t, few)
	got, big := oneMore(t, many)
	if got != wanted {
		t.Errorf("with %d tags it asks %+v of containerd, with %d %+v", few, wanted, many, got)
	}
	if want := (effort{reads: 13, writes: 1}); got != want {
		t.Errorf("it asks %+v of containerd, not %+v", got, want)
	}
	if limit := 2 * small * many / few; big > limit {
		t.Errorf("with %d tags it takes %d bytes, with %d %d: more than %d", few, small, many, big, limit)
	}
	t.Logf("%d tags: %d bytes, %d tags: %d bytes", few, small, many, big)
}

// The labels that another tool has taken from a record of many tags are all
// written again, and a record that other tags have is left alone.
func TestManyTagsAreMended(t *testing.T) {
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
		t.Errorf("after %d writes the records are\n%s", e.records.writes, lines(e.state(t)))
	}
	e.restart()
	if unknown := e.load(t); len(unknown) > 0 {
		t.Errorf("unexplained: %q", unknown)
	}
	// The key of the digest is one, whichever tag it was pulled by.
	keys := map[imagepin.Key]bool{}
	for _, k := range want {
		keys[k] = true
	}
	if got := e.keys(); len(got) != len(keys) || len(keys) != count+1 {
		t.Errorf("%d keys, not %d", len(got), count+1)
	}
}

// A tag that another tool has moved is not moved back when another tag of the
// digest that it had is written.
func TestATagThatMovedIsNotMovedBack(t *testing.T) {
	e := newEnv(t)
	of := e.tagsOf(t, 2)
	other := e.image("other")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, other, native)
	e.move(t, of(0)[1].Ref, other)
	if _, err := e.store.Sync(e.ctx, of(0)[0].Record); err != nil { // before the event of the tag has come
		t.Fatal(err)
	}
	if got := e.Records(t)[of(0)[1].Ref].Target.Digest; got != other.root.Digest {
		t.Errorf("the tag was moved back to %s", got)
	}
}
