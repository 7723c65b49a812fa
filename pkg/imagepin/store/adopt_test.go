package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestAdoptSkipsMovedTag adopts two images. The tag of one was moved or deleted after the listing, so only the other is
// adopted.
func TestAdoptSkipsMovedTag(t *testing.T) {
	for what, move := range map[string]func(*env, image, image){
		"moved by a pull": func(e *env, _, newer image) { e.pull(t, tag, newer, native, 100, "") },
		"moved by another tool": func(e *env, _, newer image) {
			if _, err := e.Images.Update(e.ctx, images.Image{Name: tag, Target: newer.root}, "target"); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(e *env, _, _ image) {
			if err := e.Images.Delete(e.ctx, tag); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			e := newEnv(t)
			older, newer, other := e.image("a"), e.image("b"), e.image("c")
			ctx, done := e.Lease(t)
			defer done()
			var adoptions []Adoption
			for name, i := range map[string]image{tag: older, repo + ":other": other} {
				adoptions = append(adoptions, e.adoptionOf(ctx, t, name, i))
			}
			e.place(ctx, t, newer, native)
			move(e, older, newer)
			if _, err := e.store.Adopt(ctx, adoptions...); err != nil {
				t.Fatal(err)
			}
			if got := e.store.ByRef(repo + ":other"); len(got) != 1 || got[0].Root.Digest != other.root.Digest {
				t.Errorf("the other image: got %v, want %s", got, other.root.Digest)
			}
			for _, got := range e.store.ByRef(tag) {
				if got.Root.Digest != newer.root.Digest {
					t.Errorf("the moved tag: got %v, want %s", got, newer.root.Digest)
				}
			}
			if img := e.Records(t)[tag]; img.Target.Digest == older.root.Digest {
				t.Error("the record of the tag has the older digest again")
			}
		})
	}
}

// TestAdoptSkipsLaterPull pulls a tag for another platform after another tool wrote the tag's record. The pull does not
// write that record.
func TestAdoptSkipsLaterPull(t *testing.T) {
	e := newEnv(t)
	older, newer := e.image("a"), e.image("b")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, older, foreign)
	img, err := e.Images.Create(e.ctx, images.Image{Name: tag, Target: older.root})
	if err != nil {
		t.Fatal(err)
	}
	pulled := int(time.Until(time.Unix(when, 0)).Abs()/time.Second) + 10
	e.pull(t, tag, newer, foreign, pulled, "")
	adopted := entries(tag, older, foreign, 0)[1:]
	if _, err := e.store.Adopt(ctx, Adoption{Image: img, Entries: adopted}); err != nil {
		t.Fatal(err)
	}
	if got, ok := e.store.Get(imagepin.Key{Ref: tag, Target: foreign}); !ok || got.Root.Digest != newer.root.Digest {
		t.Errorf("tag: got %v, want %s", got, newer.root.Digest)
	}
}

// TestRecordOfAPullReplacesNoKey pulls a newer digest for one target, and then an older one, which the registry returned
// before, for another. The older one, which is unpacked for both or is unpacked then, is not adopted for the first: its pull
// moved the tag. If another tool moved the tag, it is.
func TestRecordOfAPullReplacesNoKey(t *testing.T) {
	for how, adopt := range map[string]func(context.Context, *env, images.Image, imagepin.Entry) error{
		"unpacked before": func(ctx context.Context, e *env, img images.Image, entry imagepin.Entry) error {
			_, err := e.store.Adopt(ctx, Adoption{Image: img, Entries: []imagepin.Entry{entry}})
			return err
		},
		"unpacked for the adoption": func(ctx context.Context, e *env, img images.Image, entry imagepin.Entry) error {
			_, err := e.store.PutIf(ctx, entry, img.Name)
			return err
		},
	} {
		for who, byPull := range map[string]bool{"a pull": true, "another tool": false} {
			t.Run(how+", moved by "+who, func(t *testing.T) {
				e := newEnv(t)
				older, newer := e.image("a"), e.image("b")
				ctx, done := e.Lease(t)
				defer done()
				e.place(ctx, t, older, native)
				e.pull(t, tag, newer, native, 1, "")
				want := older
				if byPull {
					e.pull(t, tag, older, nativeToo, 2, "")
					want = newer
				} else {
					e.move(t, tag, older)
				}
				img := e.Records(t)[tag]
				if img.Target.Digest != older.root.Digest {
					t.Fatalf("tag: got digest %s, want that of the last move, %s", img.Target.Digest, older.root.Digest)
				}
				if err := adopt(ctx, e, img, entries(tag, older, native, 3)[1]); err != nil {
					t.Fatal(err)
				}
				if got, ok := e.store.Get(imagepin.Key{Ref: tag, Target: native}); !ok || got.Root.Digest != want.root.Digest {
					t.Errorf("tag: got %v, want %s", got, want.root.Digest)
				}
			})
		}
	}
}

// TestTagOfADamagedImageMoves adopts an image that loses its configuration, and pulls another digest for its tag. The pull
// succeeds.
func TestTagOfADamagedImageMoves(t *testing.T) {
	e := newEnv(t)
	older, newer := e.image("a"), e.image("b")
	ctx, done := e.Lease(t)
	defer done()
	e.createAdopted(ctx, t, older)
	if err := e.Content.Delete(e.ctx, older.amd64.Config.Digest); err != nil {
		t.Fatal(err)
	}
	e.pull(t, tag, newer, native, 1, "")
	if got, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); got.Root.Digest != newer.root.Digest {
		t.Errorf("tag: got digest %s, want %s", got.Root.Digest, newer.root.Digest)
	}
}

// createAdopted makes an image under the tag, as another tool does, and adopts it.
func (e *env) createAdopted(ctx context.Context, t *testing.T, i image) {
	t.Helper()
	if _, err := e.store.Adopt(ctx, e.adoptionOf(ctx, t, tag, i)); err != nil {
		t.Fatal(err)
	}
}

// adoptionOf returns an image that another tool has put on the node under a name, and how it is adopted.
func (e *env) adoptionOf(ctx context.Context, t *testing.T, name string, i image) Adoption {
	t.Helper()
	e.place(ctx, t, i, native)
	img, err := e.Images.Create(e.ctx, images.Image{Name: name, Target: i.root})
	if err != nil {
		t.Fatal(err)
	}
	return adoption(img, i)
}

// adoption is how an image is adopted under the name of its record.
func adoption(img images.Image, i image) Adoption {
	adopted := entries(img.Name, i, native, 0)[1:]
	adopted[0].Source, adopted[0].ReadyAt = imagepin.SourceAdopted, img.UpdatedAt
	return Adoption{Image: img, Entries: adopted}
}

// adopt adopts an image under the name of its record.
func (e *env) adopt(ctx context.Context, t *testing.T, img images.Image, i image) {
	t.Helper()
	if _, err := e.store.Adopt(ctx, adoption(img, i)); err != nil {
		t.Fatal(err)
	}
}

// TestAnotherToolMovesATag adopts an image, and then the image that another tool moves the tag to. As with stock
// containerd, the older image stays until it is removed.
func TestAnotherToolMovesATag(t *testing.T) {
	e := newEnv(t)
	older, newer := e.image("a"), e.image("b")
	ctx, done := e.Lease(t)
	defer done()
	e.createAdopted(ctx, t, older)
	e.place(ctx, t, newer, native)
	if _, err := e.Images.Update(e.ctx, images.Image{Name: tag, Target: newer.root}, "target"); err != nil {
		t.Fatal(err)
	}
	unknown, err := e.store.Sync(e.ctx, tag)
	if err != nil || unknown == nil {
		t.Fatalf("got record %v, %v, want the tag", unknown, err)
	}
	e.adopt(ctx, t, *unknown, newer)
	byDigest := imagepin.Key{Ref: repo + "@" + older.root.Digest.String(), Target: native}
	if got, ok := e.store.Get(byDigest); !ok || got.Root.Digest != older.root.Digest {
		t.Errorf("by digest: got %v, want %s", got, older.root.Digest)
	}
	e.wantSound(t)
}

// TestSourceOfATagChanges adopts an image, and records its tag again with the same digest from a pull. The tag keeps its
// image, so the image gets no key of its digest.
func TestSourceOfATagChanges(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	ctx, done := e.Lease(t)
	defer done()
	e.createAdopted(ctx, t, i)
	pulled := entries(tag, i, native, 1)[1:]
	if _, err := e.store.Put(ctx, "", pulled...); err != nil {
		t.Fatal(err)
	}
	if got, _ := e.store.Get(pulled[0].Key); got.Source != imagepin.SourcePull {
		t.Errorf("tag: got source %s, want %s", got.Source, imagepin.SourcePull)
	}
	if got := e.store.ByRoot(i.root.Digest); len(got) != 1 {
		t.Errorf("got keys %v, want only that of the tag", got)
	}
}

// TestAdoptedTagMoves adopts an image, which has only its tag, and pulls another digest for the tag. As with stock
// containerd, the adopted image stays until it is removed: containers may run it.
func TestAdoptedTagMoves(t *testing.T) {
	e := newEnv(t)
	older, newer := e.image("a"), e.image("b")
	ctx, done := e.Lease(t)
	defer done()
	e.createAdopted(ctx, t, older)
	e.pull(t, tag, newer, native, 1, "")
	byDigest := repo + "@" + older.root.Digest.String()
	want := map[string]digest.Digest{
		tag: newer.root.Digest, repo + "@" + newer.root.Digest.String(): newer.root.Digest,
		newer.amd64.Config.Digest.String(): newer.root.Digest,
		byDigest:                           older.root.Digest, older.amd64.Config.Digest.String(): older.root.Digest,
	}
	e.wantRecords(t, want)
	e.wantSound(t)
	e.restart()
	wantEqual(t, "unaccounted records", e.load(t), nil)
	got, ok := e.store.Get(imagepin.Key{Ref: byDigest, Target: native})
	if !ok || got.Root.Digest != older.root.Digest || got.ImageID != older.amd64.Config.Digest {
		t.Errorf("by digest after a start: got %v, want image %s", got, older.amd64.Config.Digest)
	}
}
