package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

func TestRecordsOfANativeImage(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	change := e.pull(t, tag, i, native, 0, "")
	record := repo + "@" + i.root.Digest.String()
	e.wantRecords(t, map[string]digest.Digest{
		tag: i.root.Digest, record: i.root.Digest, i.amd64.Config.Digest.String(): i.root.Digest,
	})
	es := entries(tag, i, native, 0)
	wantEqual(t, "keys on the digest's record", e.keyLabels(t, record), texts(keysOf(es)...))
	wantEqual(t, "keys on the tag", e.keyLabels(t, tag), nil)
	wantEqual(t, "keys on the ID", e.keyLabels(t, i.amd64.Config.Digest.String()), nil)
	slices.Sort(change.Names)
	wantEqual(t, "names that are new", change.Names, []string{tag, record, i.amd64.Config.Digest.String()})
	for name, img := range e.Records(t) {
		if img.Labels[criManagedLabel] != criManagedValue || img.Labels[criPinnedLabel] != "" {
			t.Errorf("%s has labels %v", name, img.Labels)
		}
	}
	if e.HasBlob(t, i.arm.Manifest.Digest) {
		t.Error("the index keeps the manifest of another platform")
	}
	e.sound(t)
	e.remove(t, keysOf(es)...)
	e.wantEmpty(t)
}

func TestRecordsOfAForeignImage(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, foreign, 0, "")
	record := repo + "@" + i.arm.Manifest.Digest.String()
	e.wantRecords(t, map[string]digest.Digest{
		record: i.arm.Manifest.Digest, i.arm.Config.Digest.String(): i.arm.Manifest.Digest,
	})
	es := entries(tag, i, foreign, 0)
	wantEqual(t, "keys on the manifest's record", e.keyLabels(t, record), texts(keysOf(es)...))
	e.sound(t)

	// The node's own platform of the same tag stands beside it.
	e.pull(t, tag, i, native, 1, "")
	e.wantRecords(t, map[string]digest.Digest{
		record: i.arm.Manifest.Digest, i.arm.Config.Digest.String(): i.arm.Manifest.Digest,
		tag: i.root.Digest, repo + "@" + i.root.Digest.String(): i.root.Digest, i.amd64.Config.Digest.String(): i.root.Digest,
	})
	e.sound(t)
	e.remove(t, keysOf(entries(tag, i, native, 1))...)
	e.wantRecords(t, map[string]digest.Digest{
		record: i.arm.Manifest.Digest, i.arm.Config.Digest.String(): i.arm.Manifest.Digest,
	})
	e.sound(t)
	e.remove(t, keysOf(es)...)
	e.wantEmpty(t)
}

func TestSecondSnapshotterAddsLabelsOnly(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	before := e.Records(t)
	if change := e.pull(t, tag, i, nativeToo, 1, ""); len(change.Names) != 0 || !change.Wrote {
		t.Errorf("change is %+v", change)
	}
	record := repo + "@" + i.root.Digest.String()
	after := e.Records(t)
	if len(after) != len(before) {
		t.Errorf("records: %s\nbefore: %s", lines(after), lines(before))
	}
	for name, img := range after {
		added := len(img.Labels) - len(before[name].Labels)
		if img.Target.Digest != before[name].Target.Digest || (name != record && added != 0) || (name == record && added != 2) {
			t.Errorf("%s: %d labels were added", name, added)
		}
	}
	e.sound(t)
}

func TestTagMoves(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	change := e.pull(t, tag, b, native, 1, "")
	if !slices.Contains(change.Names, tag) {
		t.Errorf("the CRI service behind is not waited for to see the tag move: %v", change.Names)
	}
	oldRecord, newRecord := repo+"@"+a.root.Digest.String(), repo+"@"+b.root.Digest.String()
	e.wantRecords(t, map[string]digest.Digest{
		tag: b.root.Digest, newRecord: b.root.Digest, b.amd64.Config.Digest.String(): b.root.Digest,
		oldRecord: a.root.Digest, a.amd64.Config.Digest.String(): a.root.Digest,
	})
	wantEqual(t, "keys on the old record", e.keyLabels(t, oldRecord), texts(imagepin.Key{Ref: oldRecord, Target: native}))
	wantEqual(t, "keys on the new record", e.keyLabels(t, newRecord), texts(keysOf(entries(tag, b, native, 1))...))
	if got, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); got.Root.Digest != b.root.Digest {
		t.Errorf("the tag means %s", got.Root.Digest)
	}
	e.sound(t)

	e.restart()
	wantEqual(t, "unexplained", e.load(t), nil)
	if got, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); got.Root.Digest != b.root.Digest {
		t.Errorf("after a start the tag means %s", got.Root.Digest)
	}
}

// One target moves to what the tag means now, another stays with what it meant:
// the tag's record follows what was made ready last.
func TestTagMovesForOneTarget(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	e.pull(t, tag, a, nativeToo, 1, "")
	e.pull(t, tag, b, nativeToo, 2, "")
	if got := e.Records(t)[tag].Target.Digest; got != b.root.Digest {
		t.Errorf("the tag's record targets %s", got)
	}
	e.remove(t, imagepin.Key{Ref: tag, Target: nativeToo}, imagepin.Key{Ref: repo + "@" + b.root.Digest.String(), Target: nativeToo})
	if got := e.Records(t)[tag].Target.Digest; got != a.root.Digest {
		t.Errorf("the tag's record targets %s, which no key means", got)
	}
	e.sound(t)
}

func TestPutOfTheSameWritesNothing(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	for at, target := range []runtimeplatform.Target{native, nativeToo, foreign, foreignToo} {
		e.pull(t, tag, i, target, at, "proof")
	}
	for _, restart := range []bool{false, true} {
		if restart {
			e.restart()
			e.load(t)
		}
		e.records.writes = 0
		before, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native})
		for _, target := range []runtimeplatform.Target{native, nativeToo, foreign, foreignToo} {
			change, err := e.store.Put(e.ctx, "proof", entries(tag, i, target, 100)...)
			if err != nil || change.Wrote || len(change.Names) > 0 {
				t.Errorf("restart %v: %s: %+v, %v", restart, target, change, err)
			}
		}
		if e.records.writes != 0 {
			t.Errorf("restart %v: wrote %d times", restart, e.records.writes)
		}
		if after, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); !after.ReadyAt.Equal(before.ReadyAt) {
			t.Errorf("restart %v: the key forgot since when it is ready", restart)
		}
	}
}

// gzip and zstd of one build, say.
func TestManifestsThatShareAConfiguration(t *testing.T) {
	e := newEnv(t)
	of := func(compression string) image {
		img := e.blobs.Image("linux/amd64", "same", map[string]string{"compression": compression})
		return image{root: e.blobs.Index(img.Manifest), amd64: img}
	}
	gzip, zstd := of("gzip"), of("zstd")
	if gzip.amd64.Config.Digest != zstd.amd64.Config.Digest || gzip.amd64.Manifest.Digest == zstd.amd64.Manifest.Digest {
		t.Fatal("the images are not what the test needs")
	}
	id := gzip.amd64.Config.Digest.String()
	e.pull(t, repo+":gzip", gzip, native, 0, "")
	e.pull(t, repo+":zstd", zstd, native, 1, "")
	if got := e.Records(t)[id].Target.Digest; got != gzip.root.Digest {
		t.Errorf("the ID was retargeted to %s for no need", got)
	}
	e.remove(t, keysOf(entries(repo+":gzip", gzip, native, 0))...)
	e.wantRecords(t, map[string]digest.Digest{
		id: zstd.root.Digest, repo + ":zstd": zstd.root.Digest, repo + "@" + zstd.root.Digest.String(): zstd.root.Digest,
	})
	if e.HasBlob(t, gzip.amd64.Manifest.Digest) {
		t.Error("the ID keeps the manifest that was removed")
	}
	e.sound(t)
	e.remove(t, keysOf(entries(repo+":zstd", zstd, native, 1))...)
	e.wantEmpty(t)
}

func TestOneManifestInTwoRepositories(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	other := "mirror.example/copy:1"
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, other, i, native, 1, "")
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	e.wantRecords(t, map[string]digest.Digest{
		other: i.root.Digest, "mirror.example/copy@" + i.root.Digest.String(): i.root.Digest, i.amd64.Config.Digest.String(): i.root.Digest,
	})
	e.sound(t)
}

func TestLabelsOfOthersStay(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	record := repo + "@" + a.root.Digest.String()
	labelled := []string{tag, record, a.amd64.Config.Digest.String()}
	for _, name := range labelled {
		e.label(t, name, "tool.example/owner", "somebody")
		e.label(t, name, imagepin.LabelPrefix+"later", "a newer release's")
	}
	newer := imagepin.KeyLabelPrefix + "0123456789abcdef"
	e.label(t, record, newer, `{"v":2}`)

	check := func(after string) {
		t.Helper()
		for _, name := range labelled {
			labels := e.Records(t)[name].Labels
			if labels["tool.example/owner"] != "somebody" || labels[imagepin.LabelPrefix+"later"] == "" {
				t.Errorf("after %s %s has labels %v", after, name, labels)
			}
		}
		if e.Records(t)[record].Labels[newer] == "" {
			t.Errorf("after %s the key of a newer release is gone", after)
		}
	}
	e.pull(t, tag, a, nativeToo, 1, "proof")
	check("a pull for another snapshotter")
	e.remove(t, keysOf(entries(tag, a, native, 0))...)
	check("a removal for one snapshotter")
	e.pull(t, tag, b, nativeToo, 2, "")
	check("the tag moved")
	if _, err := e.store.Sync(e.ctx, record); err != nil {
		t.Fatal(err)
	}
	check("a look at the record")
}

func TestPinnedImages(t *testing.T) {
	e := newEnv(t)
	pause := e.image("pause")
	e.pull(t, "registry.example/pause:1", pause, native, 0, "")
	e.pull(t, "registry.example/pause:2", e.image("other"), native, 0, "")
	for name, img := range e.Records(t) {
		want := ""
		// The ID and the tag are what the CRI asks by; the record of the
		// digest carries the tag's key.
		if img.Target.Digest == pause.root.Digest {
			want = criPinnedValue
		}
		if img.Labels[criPinnedLabel] != want {
			t.Errorf("%s: pinned is %q, not %q", name, img.Labels[criPinnedLabel], want)
		}
	}
}

func TestProofs(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "p0")
	record := repo + "@" + i.root.Digest.String()
	on := func(name string) []string {
		found := proofsOn(e.Records(t)[name])
		slices.Sort(found)
		return found
	}
	wantEqual(t, "proofs on the digest's record", on(record), []string{"p0"})
	wantEqual(t, "proofs on the tag", on(tag), nil)
	if !e.store.HasProof("other", "p0") || e.store.HasProof("other") || e.store.HasProof() {
		t.Error("the proof is not known")
	}

	// The oldest goes when there is no room: give each a time of its own.
	e.label(t, record, imagepin.ProofLabelPrefix+"p0", "2026-01-01T00:00:00Z")
	for n := 1; n < maxProofsARecord; n++ {
		proof := fmt.Sprintf("p%d", n)
		if change, err := e.store.Put(e.ctx, proof, entries(tag, i, native, 0)...); err != nil || !change.Wrote {
			t.Fatalf("%+v, %v", change, err)
		}
		e.label(t, record, imagepin.ProofLabelPrefix+proof, fmt.Sprintf("2026-01-02T00:00:%02dZ", n))
	}
	if got := on(record); len(got) != maxProofsARecord {
		t.Errorf("%d proofs: %v", len(got), got)
	}
	for _, restart := range []bool{false, true} {
		if restart {
			e.restart()
			e.load(t)
		}
		next := fmt.Sprintf("next %v", restart)
		next = strings.ReplaceAll(next, " ", "-")
		if _, err := e.store.Put(e.ctx, next, entries(tag, i, native, 0)...); err != nil {
			t.Fatal(err)
		}
		gone := map[bool]string{false: "p0", true: "p1"}[restart]
		if got := on(record); len(got) != maxProofsARecord || slices.Contains(got, gone) || !slices.Contains(got, next) {
			t.Errorf("restart %v: proofs are %v", restart, got)
		}
		if e.store.HasProof(gone) || !e.store.HasProof(next) || !e.store.HasProof("p2") {
			t.Errorf("restart %v: the store knows other proofs than the record has", restart)
		}
	}

	// A proof does not outlive the records that carry it.
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	if e.store.HasProof("p2", "next-false", "next-true") {
		t.Error("a proof outlives its image")
	}
}

func TestRemoveFreesOneSnapshotter(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	chain, config := i.amd64.ChainID, i.amd64.Config.Digest

	// A key of that snapshotter is left: nothing is freed.
	e.remove(t, imagepin.Key{Ref: tag, Target: native})
	if !e.HasSnapshot(t, "first", chain) || e.Records(t)[tag].Name == "" {
		t.Error("what another key needs was removed")
	}
	e.remove(t, imagepin.Key{Ref: repo + "@" + i.root.Digest.String(), Target: native})
	if e.HasSnapshot(t, "first", chain) || !e.HasSnapshot(t, "second", chain) {
		t.Errorf("snapshots: first %v, second %v", e.HasSnapshot(t, "first", chain), e.HasSnapshot(t, "second", chain))
	}
	info, err := e.Content.Info(e.ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	if info.Labels[snapshotKey+"first"] != "" || info.Labels[snapshotKey+"second"] != chain.String() {
		t.Errorf("labels of the configuration: %v", info.Labels)
	}
	e.sound(t)
	e.remove(t, keysOf(entries(tag, i, nativeToo, 1))...)
	e.wantEmpty(t)
	e.remove(t, keysOf(entries(tag, i, nativeToo, 1))...) // once more: nothing to do
}

func TestRemoveOfNothing(t *testing.T) {
	e := newEnv(t)
	change, err := e.store.Remove(e.ctx, imagepin.Key{Ref: tag, Target: native})
	if err != nil || change.Wrote || e.records.writes != 0 {
		t.Errorf("%+v, %v, %d writes", change, err, e.records.writes)
	}
}

// What another tool made of a tag meanwhile is not ours to delete.
func TestRemoveLeavesATagThatMoved(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	ctx, done := e.Lease(t)
	e.place(ctx, t, b, native)
	if _, err := e.Images.Update(e.ctx, images.Image{Name: tag, Target: b.root}, "target"); err != nil {
		t.Fatal(err)
	}
	done()
	e.remove(t, keysOf(entries(tag, a, native, 0))...)
	e.wantRecords(t, map[string]digest.Digest{tag: b.root.Digest})
	if !e.HasBlob(t, b.amd64.Manifest.Digest) || e.HasBlob(t, a.amd64.Manifest.Digest) {
		t.Error("the content is not that of the tag")
	}
}

// A pull takes an adopted image over: its key moves from the tag that carried
// it to the record of the digest.
func TestPullOfAnAdoptedImage(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, native)
	if _, err := e.Images.Create(e.ctx, images.Image{Name: tag, Target: i.root, Labels: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	done()
	wantEqual(t, "unexplained", e.load(t), []string{tag})
	adopted := entries(tag, i, native, 0)[1]
	adopted.Source, adopted.Record = imagepin.SourceAdopted, tag
	if _, err := e.store.Put(e.ctx, "", adopted); err != nil {
		t.Fatal(err)
	}
	e.wantRecords(t, map[string]digest.Digest{tag: i.root.Digest, i.amd64.Config.Digest.String(): i.root.Digest})
	wantEqual(t, "keys on the tag", e.keyLabels(t, tag), texts(adopted.Key))

	e.pull(t, tag, i, native, 1, "")
	wantEqual(t, "keys on the tag after a pull", e.keyLabels(t, tag), nil)
	wantEqual(t, "keys on the digest's record", e.keyLabels(t, repo+"@"+i.root.Digest.String()), texts(keysOf(entries(tag, i, native, 1))...))
	if e.Records(t)[tag].Labels["a"] != "b" {
		t.Error("a label of the tool is gone")
	}
	e.sound(t)
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	e.wantEmpty(t)
}

func TestSync(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(*env, *testing.T, image, image)
		look      string // "tag", "digest" or "ID"
		keys      int    // that are left
		unknown   bool
	}{
		"nothing":                       {func(*env, *testing.T, image, image) {}, "digest", 2, false},
		"nothing with the ID":           {func(*env, *testing.T, image, image) {}, "ID", 2, false},
		"tag was deleted":               {(*env).deleteTag, "tag", 1, false},
		"record with keys was deleted":  {(*env).deleteDigest, "digest", 1, false},
		"tag was moved":                 {(*env).moveTag, "tag", 2, true},
		"record with keys was moved":    {(*env).moveDigest, "digest", 1, true},
		"labels of the record wiped":    {(*env).wipeDigest, "digest", 2, false},
		"an unknown record was created": {(*env).createOther, "other", 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			a, b := e.image("a"), e.image("b")
			e.pull(t, tag, a, native, 0, "")
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, b, native)
			before := e.state(t)
			c.meanwhile(e, t, a, b)
			look := map[string]string{
				"tag": tag, "digest": repo + "@" + a.root.Digest.String(), "ID": a.amd64.Config.Digest.String(), "other": repo + ":other",
			}[c.look]
			unknown, err := e.store.Sync(e.ctx, look)
			if err != nil {
				t.Fatal(err)
			}
			if (unknown != nil) != c.unknown || (unknown != nil && unknown.Name != look) {
				t.Errorf("for adoption: %v", unknown)
			}
			if got := e.keys(); len(got) != c.keys {
				t.Errorf("keys are %v", got)
			}
			e.sound(t)
			if strings.HasPrefix(name, "labels") && lines(e.state(t)) != lines(before) {
				t.Errorf("labels were not put back:\n%s", lines(e.state(t)))
			}
			if strings.HasPrefix(name, "nothing") && e.records.writes != 3 {
				t.Errorf("wrote %d times", e.records.writes-3)
			}
			after := e.state(t)
			if _, err := e.store.Sync(e.ctx, look); err != nil || lines(e.state(t)) != lines(after) {
				t.Errorf("the second look changes something: %v", err)
			}
		})
	}
}

func (e *env) deleteTag(t *testing.T, _, _ image) { e.delete(t, tag) }

func (e *env) deleteDigest(t *testing.T, a, _ image) { e.delete(t, repo+"@"+a.root.Digest.String()) }

func (e *env) delete(t *testing.T, name string) {
	t.Helper()
	if err := e.Images.Delete(e.ctx, name); err != nil {
		t.Fatal(err)
	}
}

func (e *env) moveTag(t *testing.T, _, b image) { e.move(t, tag, b) }

func (e *env) moveDigest(t *testing.T, a, b image) { e.move(t, repo+"@"+a.root.Digest.String(), b) }

func (e *env) move(t *testing.T, name string, to image) {
	t.Helper()
	if _, err := e.Images.Update(e.ctx, images.Image{Name: name, Target: to.root}, "target"); err != nil {
		t.Fatal(err)
	}
}

// wipeDigest does what stock's CRI does when it pulls the same digest again.
func (e *env) wipeDigest(t *testing.T, a, _ image) {
	t.Helper()
	if _, err := e.Images.Update(e.ctx, images.Image{
		Name: repo + "@" + a.root.Digest.String(), Labels: map[string]string{criManagedLabel: criManagedValue},
	}, "labels"); err != nil {
		t.Fatal(err)
	}
}

func (e *env) createOther(t *testing.T, _, b image) {
	t.Helper()
	if _, err := e.Images.Create(e.ctx, images.Image{Name: repo + ":other", Target: b.root}); err != nil {
		t.Fatal(err)
	}
}

func TestLoad(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "p")
	e.pull(t, tag, a, nativeToo, 1, "")
	e.pull(t, tag, a, foreign, 2, "")
	e.pull(t, repo+":b", b, native, 3, "")
	want := e.keys()
	before := e.state(t)

	e.restart()
	wantEqual(t, "unexplained", e.load(t), nil)
	wantEqual(t, "keys", e.keys(), want)
	if !e.store.HasProof("p") {
		t.Error("a proof is not found again")
	}
	if e.records.writes != 0 || lines(e.state(t)) != lines(before) {
		t.Errorf("Load wrote %d times", e.records.writes)
	}
	got, ok := e.store.Get(imagepin.Key{Ref: tag, Target: foreign})
	wanted := entries(tag, a, foreign, 2)[1]
	if !ok || fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", wanted) {
		t.Errorf("got  %+v\nwant %+v", got, wanted)
	}
}

func TestLoadSkipsWhatIsNotReady(t *testing.T) {
	digested := func(i image) string { return repo + "@" + i.root.Digest.String() }
	for name, c := range map[string]struct {
		spoil func(*testing.T, *env, image)
		lost  bool // of the native key; the second snapshotter's may stay
		both  bool
	}{
		"nothing":       {func(*testing.T, *env, image) {}, false, false},
		"manifest":      {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Manifest.Digest) }, true, true},
		"configuration": {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Config.Digest) }, true, true},
		"snapshot": {func(t *testing.T, e *env, i image) {
			if err := e.Snapshotter("first").Remove(e.ctx, i.amd64.ChainID.String()); err != nil {
				t.Fatal(err)
			}
		}, true, false},
		"snapshot that is not committed": {func(t *testing.T, e *env, i image) {
			sn := e.Snapshotter("first")
			if err := sn.Remove(e.ctx, i.amd64.ChainID.String()); err != nil {
				t.Fatal(err)
			}
			if _, err := sn.Prepare(e.ctx, i.amd64.ChainID.String(), ""); err != nil {
				t.Fatal(err)
			}
		}, true, false},
		"layer, which may be discarded": {func(t *testing.T, e *env, i image) { e.deleteBlob(t, i.amd64.Layer.Digest) }, false, false},
		"damaged label": {func(t *testing.T, e *env, i image) {
			e.label(t, digested(i), imagepin.KeyLabelName(imagepin.Key{Ref: tag, Target: native}), "{")
		}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			i := e.image("a")
			e.pull(t, tag, i, native, 0, "")
			e.pull(t, tag, i, nativeToo, 1, "")
			c.spoil(t, e, i)
			e.restart()
			e.load(t)
			if _, ok := e.store.Get(imagepin.Key{Ref: tag, Target: native}); ok == c.lost {
				t.Errorf("native key: %v", ok)
			}
			if _, ok := e.store.Get(imagepin.Key{Ref: tag, Target: nativeToo}); ok == c.both {
				t.Errorf("key of the second snapshotter: %v", ok)
			}
		})
	}
}

func (e *env) deleteBlob(t *testing.T, d digest.Digest) {
	t.Helper()
	if err := e.Content.Delete(e.ctx, d); err != nil {
		t.Fatal(err)
	}
}

func TestLoadSkipsTargetsOfNoHandler(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	gone := entries(tag, i, native, 0)[1]
	gone.Target.Snapshotter = "third"
	label, value, err := imagepin.EncodeKeyLabel(gone)
	if err != nil {
		t.Fatal(err)
	}
	e.label(t, gone.Record, label, value)
	e.restart()
	e.load(t)
	wantEqual(t, "keys", e.keys(), texts(keysOf(entries(tag, i, native, 0))...))
}

// A crash between the writes of a tag that moves leaves its key on two records.
func TestLoadTakesTheLaterOfTwoClaims(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	e.pull(t, tag, b, native, 1, "")
	old := entries(tag, a, native, 0)[1]
	label, value, err := imagepin.EncodeKeyLabel(old)
	if err != nil {
		t.Fatal(err)
	}
	e.label(t, old.Record, label, value)
	e.restart()
	e.load(t)
	if got, _ := e.store.Get(old.Key); got.Root.Digest != b.root.Digest {
		t.Errorf("the tag means %s", got.Root.Digest)
	}
	wantEqual(t, "keys on the old record", e.keyLabels(t, old.Record), texts(imagepin.Key{Ref: old.Record, Target: native}))
	e.remove(t, append(keysOf(entries(tag, b, native, 1)), entries(tag, a, native, 0)[0].Key)...)
	e.wantEmpty(t)
}

// A tag that was deleted while nobody watched is gone, as Sync has it.
func TestLoadForgetsATagThatIsGone(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, foreign, 1, "")
	e.delete(t, tag)
	e.restart()
	e.load(t)
	want := append(keysOf(entries(tag, i, foreign, 1)), imagepin.Key{Ref: repo + "@" + i.root.Digest.String(), Target: native})
	wantEqual(t, "keys", e.keys(), texts(want...))
	wantEqual(t, "keys on the record", e.keyLabels(t, want[2].Ref), texts(want[2]))
}

func TestLoadReturnsWhatNoKeyExplains(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	ctx, done := e.Lease(t)
	defer done()
	e.place(ctx, t, b, native)
	for _, name := range []string{repo + ":other", repo + "@" + b.root.Digest.String(), b.amd64.Config.Digest.String()} {
		if _, err := e.Images.Create(e.ctx, images.Image{Name: name, Target: b.root}); err != nil {
			t.Fatal(err)
		}
	}
	e.restart()
	wantEqual(t, "unexplained", e.load(t), []string{repo + ":other", repo + "@" + b.root.Digest.String(), b.amd64.Config.Digest.String()})

	// Another tool moves a tag of ours: that is unexplained too.
	e.move(t, tag, b)
	e.restart()
	if got := e.load(t); !slices.Contains(got, tag) {
		t.Errorf("unexplained: %v", got)
	}
}

type brokenSnapshotter struct{ snapshots.Snapshotter }

func (brokenSnapshotter) Walk(context.Context, snapshots.WalkFunc, ...string) error {
	return errors.New("no answer")
}

// One snapshotter that does not answer does not take the others' images away.
func TestLoadWithASnapshotterThatDoesNotAnswer(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	e.restart()
	e.store.Snapshotter = func(name string) snapshots.Snapshotter {
		if name == "first" {
			return brokenSnapshotter{e.Snapshotter(name)}
		}
		return e.Snapshotter(name)
	}
	e.load(t)
	wantEqual(t, "keys", e.keys(), texts(keysOf(entries(tag, i, nativeToo, 1))...))
}

func TestFind(t *testing.T) {
	e := newEnv(t)
	busybox := e.image("busybox")
	app := e.image("app")
	e.pull(t, "docker.io/library/busybox:latest", busybox, native, 0, "")
	e.pull(t, tag, app, foreign, 1, "")
	manifest := app.arm.Manifest.Digest.String()
	id := busybox.amd64.Config.Digest
	for name, want := range map[string]digest.Digest{
		id.String():                               id,
		id.Encoded():                              id,
		id.Encoded()[:12]:                         id,
		"sha256:" + id.Encoded()[:12]:             id,
		"docker.io/library/busybox:latest":        id,
		"busybox":                                 id,
		"busybox:latest":                          id,
		"library/busybox":                         id,
		"busybox@" + busybox.root.Digest.String(): id,
		"busybox:latest@" + busybox.root.Digest.String(): id,
		"busybox:other@" + busybox.root.Digest.String():  id,
		tag:                                   app.arm.Config.Digest,
		repo + "@" + app.root.Digest.String(): app.arm.Config.Digest,
		repo + "@" + manifest:                 app.arm.Config.Digest,
		"busybox:2":                           "",
		"registry.example/busybox":            "",
		"busybox@" + app.root.Digest.String(): "",
		digest.FromString("none").String():    "",
		"":                                    "",
		"Not A Reference":                     "",
	} {
		var got digest.Digest
		for _, entry := range e.store.Find(name) {
			if got != "" && got != entry.ImageID {
				t.Errorf("%q means several images", name)
			}
			got = entry.ImageID
		}
		if got != want {
			t.Errorf("%q means %q, not %q", name, got, want)
		}
	}

	// The beginning that several IDs share means none of them.
	if es := e.store.Find("sha256:"); len(es) > 0 {
		t.Errorf("an ambiguous beginning means %v", keysOf(es))
	}
	e.remove(t, keysOf(entries("docker.io/library/busybox:latest", busybox, native, 0))...)
	for _, name := range []string{"busybox", id.String(), id.Encoded()[:12]} {
		if es := e.store.Find(name); len(es) > 0 {
			t.Errorf("%q still means %v", name, keysOf(es))
		}
	}
}

// Interrupted after any number of writes, an operation leaves no key without
// its content, and done again it ends where it would have without the
// interruption.
func TestInterruptedOperations(t *testing.T) {
	type operation func(*testing.T, *env, image, image) error
	put := func(target runtimeplatform.Target, second bool, at int) operation {
		return func(t *testing.T, e *env, a, b image) error {
			i := a
			if second {
				i = b
			}
			ctx, done := e.Lease(t)
			defer done()
			e.place(ctx, t, i, target)
			_, err := e.store.Put(e.ctx, "proof", entries(tag, i, target, at)...)
			return err
		}
	}
	remove := func(target runtimeplatform.Target) operation {
		return func(t *testing.T, e *env, a, _ image) error {
			_, err := e.store.Remove(e.ctx, keysOf(entries(tag, a, target, 0))...)
			return err
		}
	}
	for name, c := range map[string]struct {
		before []operation
		do     operation
	}{
		"first pull":                       {nil, put(native, false, 0)},
		"first pull of another platform":   {nil, put(foreign, false, 0)},
		"pull for a second snapshotter":    {[]operation{put(native, false, 0)}, put(nativeToo, false, 1)},
		"pull of a tag that moved":         {[]operation{put(native, false, 0)}, put(native, true, 1)},
		"foreign pull of a tag that moved": {[]operation{put(foreign, false, 0)}, put(foreign, true, 1)},
		"removal":                          {[]operation{put(native, false, 0)}, remove(native)},
		"removal of another platform":      {[]operation{put(foreign, false, 0)}, remove(foreign)},
		"removal for one snapshotter":      {[]operation{put(native, false, 0), put(nativeToo, false, 1)}, remove(native)},
		"removal of what a tag meant":      {[]operation{put(native, false, 0), put(nativeToo, true, 1)}, remove(native)},
	} {
		for _, crash := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, crash %v", name, crash), func(t *testing.T) {
				prepare := func() (*env, image, image) {
					e := newEnv(t)
					a, b := e.image("a"), e.image("b")
					for _, op := range c.before {
						if err := op(t, e, a, b); err != nil {
							t.Fatal(err)
						}
					}
					e.records.writes = 0
					return e, a, b
				}
				e, a, b := prepare()
				if err := c.do(t, e, a, b); err != nil {
					t.Fatal(err)
				}
				writes, want := e.records.writes, lines(e.state(t))
				if writes == 0 {
					t.Fatal("the operation writes nothing")
				}
				for n := range writes {
					e, a, b := prepare()
					e.records.allow = n
					if err := c.do(t, e, a, b); !errors.Is(err, errStopped) {
						t.Fatalf("after %d of %d writes: %v", n, writes, err)
					}
					e.Collect(t)
					if crash {
						e.restart()
						e.load(t)
						e.sound(t)
					} else {
						e.records.allow = -1
					}
					if err := c.do(t, e, a, b); err != nil {
						t.Fatalf("again after %d of %d writes: %v", n, writes, err)
					}
					e.sound(t)
					if got := lines(e.state(t)); got != want {
						t.Errorf("after %d of %d writes and the operation again:\n%swant\n%s", n, writes, got, want)
					}
				}
			})
		}
	}
}

type failingContent struct {
	content.Store
	err error
}

func (c failingContent) Update(context.Context, content.Info, ...string) (content.Info, error) {
	return content.Info{}, c.err
}

// A removal that ends after its records were written leaves a snapshot that no
// key needs; the next start lets go of it.
func TestReleaseOrphans(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	cause := errors.New("no space")
	e.store.Content = failingContent{e.Content, cause}
	if _, err := e.store.Remove(e.ctx, keysOf(entries(tag, i, native, 0))...); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	e.Collect(t)
	if !e.HasSnapshot(t, "first", i.amd64.ChainID) {
		t.Fatal("there is no orphan to release")
	}
	e.restart()
	e.load(t)
	for range 2 {
		have, err := e.store.Inventory(e.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.store.ReleaseOrphans(e.ctx, have); err != nil {
			t.Fatal(err)
		}
	}
	if e.HasSnapshot(t, "first", i.amd64.ChainID) || !e.HasSnapshot(t, "second", i.amd64.ChainID) {
		t.Error("the snapshots are not those of the keys")
	}
	e.sound(t)

	// Where there are none, nothing is written.
	have, err := e.store.Inventory(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.store.Content = failingContent{e.Content, cause}
	if err := e.store.ReleaseOrphans(e.ctx, have); err != nil {
		t.Errorf("writes where nothing differs: %v", err)
	}
}

func TestWritersTakeTurns(t *testing.T) {
	e := newEnv(t)
	all := make([]image, 8)
	ctx, done := e.Lease(t)
	for n := range all {
		all[n] = e.image(fmt.Sprint(n))
	}
	for _, i := range all {
		e.place(ctx, t, i, native)
	}
	var wg sync.WaitGroup
	for n, i := range all {
		wg.Go(func() {
			if _, err := e.store.Put(e.ctx, "", entries(fmt.Sprintf("%s:%d", repo, n), i, native, n)...); err != nil {
				t.Error(err)
			}
			if n%2 == 0 {
				if _, err := e.store.Remove(e.ctx, keysOf(entries(fmt.Sprintf("%s:%d", repo, n), i, native, n))...); err != nil {
					t.Error(err)
				}
			}
			e.store.Images()
			e.store.Find(repo)
		})
	}
	wg.Wait()
	done()
	if got := len(e.keys()); got != len(all) {
		t.Errorf("%d keys, want two of every other image", got)
	}
	e.sound(t)

	stopped, cancel := context.WithCancelCause(e.ctx)
	cancel(errStopped)
	unlock, err := e.store.lock(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := e.store.Put(stopped, "", entries(tag, all[0], native, 0)...); !errors.Is(err, errStopped) {
		t.Errorf("waits for the lock after its context: %v", err)
	}
}
