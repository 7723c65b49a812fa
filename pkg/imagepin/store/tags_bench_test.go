package store_test

import (
	"fmt"
	"testing"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
)

// tagsOf records one image with count tags. It returns a function that returns the entries of tag i.
func (e *env) tagsOf(t testing.TB, count int) func(i int) []imagepin.Entry {
	t.Helper()
	ctx, done := e.Lease(t)
	defer done()
	e.blobs = ctdtest.Blobs{}
	img := e.image("of many tags")
	e.place(ctx, t, img, native)
	of := func(i int) []imagepin.Entry { return entries(fmt.Sprintf("%s:v%d", repo, i), img, native, i) }
	for i := range count {
		if _, err := e.store.Put(e.ctx, "", of(i)...); err != nil {
			t.Fatal(err)
		}
	}
	return of
}

// BenchmarkPutTag measures recording one more tag of a digest with many tags, and handling its events.
func BenchmarkPutTag(b *testing.B) {
	for _, count := range []int{1, 100, 400, 1_000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			inMemory(b)
			e := newEnv(b)
			of := e.tagsOf(b, count)
			b.ReportAllocs()
			for i := count; b.Loop(); i++ {
				put := of(i)
				ch, err := e.store.Put(e.ctx, "", put...)
				if err != nil || !ch.Wrote {
					b.Fatal(ch, err)
				}
				for _, name := range []string{put[1].Ref, put[1].Record} {
					if _, err := e.store.Sync(e.ctx, name); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				if _, err := e.store.Remove(e.ctx, put[1].Key); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
