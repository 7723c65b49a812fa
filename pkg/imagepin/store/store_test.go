package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/ctdtest"
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
	wantEqual(t, "new names", change.Names, []string{tag, record, i.amd64.Config.Digest.String()})
	for name, img := range e.Records(t) {
		if img.Labels[CRIManagedLabel] != CRIManagedValue || img.Labels[CRIPinnedLabel] != "" {
			t.Errorf("%s: unexpected labels %v", name, img.Labels)
		}
	}
	if e.HasBlob(t, i.arm.Manifest.Digest) {
		t.Error("the index keeps the manifest of another platform")
	}
	e.wantSound(t)
	e.remove(t, keysOf(es)...)
	e.WantEmpty(t)
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
	e.wantSound(t)

	// The same tag for the node's platform has other records.
	e.pull(t, tag, i, native, 1, "")
	e.wantRecords(t, map[string]digest.Digest{
		record: i.arm.Manifest.Digest, i.arm.Config.Digest.String(): i.arm.Manifest.Digest,
		tag: i.root.Digest, repo + "@" + i.root.Digest.String(): i.root.Digest, i.amd64.Config.Digest.String(): i.root.Digest,
	})
	e.wantSound(t)
	e.remove(t, keysOf(entries(tag, i, native, 1))...)
	e.wantRecords(t, map[string]digest.Digest{
		record: i.arm.Manifest.Digest, i.arm.Config.Digest.String(): i.arm.Manifest.Digest,
	})
	e.wantSound(t)
	e.remove(t, keysOf(es)...)
	e.WantEmpty(t)
}

func TestSecondSnapshotterAddsLabelsOnly(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	before := e.Records(t)
	if change := e.pull(t, tag, i, nativeToo, 1, ""); len(change.Names) != 0 || !change.Wrote {
		t.Errorf("got change %+v, want a write without new names", change)
	}
	record := repo + "@" + i.root.Digest.String()
	after := e.Records(t)
	if len(after) != len(before) {
		t.Errorf("got records %s\nwant the names of %s", lines(after), lines(before))
	}
	for name, img := range after {
		added := len(img.Labels) - len(before[name].Labels)
		if img.Target.Digest != before[name].Target.Digest || (name != record && added != 0) || (name == record && added != 2) {
			t.Errorf("%s: %d labels were added, or the target changed", name, added)
		}
	}
	e.wantSound(t)
}

func TestTagMoves(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	change := e.pull(t, tag, b, native, 1, "")
	if !slices.Contains(change.Names, tag) {
		t.Errorf("got names %v, want the moved tag among them", change.Names)
	}
	oldRecord, newRecord := repo+"@"+a.root.Digest.String(), repo+"@"+b.root.Digest.String()
	e.wantRecords(t, map[string]digest.Digest{
		tag: b.root.Digest, newRecord: b.root.Digest, b.amd64.Config.Digest.String(): b.root.Digest,
		oldRecord: a.root.Digest, a.amd64.Config.Digest.String(): a.root.Digest,
	})
	wantEqual(t, "keys on the old record", e.keyLabels(t, oldRecord), texts(imagepin.Key{Ref: oldRecord, Target: native}))
	wantEqual(t, "keys on the new record", e.keyLabels(t, newRecord), texts(keysOf(entries(tag, b, native, 1))...))
	if got, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); got.Root.Digest != b.root.Digest {
		t.Errorf("tag: got digest %s, want %s", got.Root.Digest, b.root.Digest)
	}
	e.wantSound(t)

	e.restart()
	wantEqual(t, "unaccounted records", e.load(t), nil)
	if got, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); got.Root.Digest != b.root.Digest {
		t.Errorf("tag after a start: got digest %s, want %s", got.Root.Digest, b.root.Digest)
	}
}

// TestTagMovesForOneTarget checks that the tag's record follows the key that was made ready last.
func TestTagMovesForOneTarget(t *testing.T) {
	e := newEnv(t)
	a, b := e.image("a"), e.image("b")
	e.pull(t, tag, a, native, 0, "")
	e.pull(t, tag, a, nativeToo, 1, "")
	e.pull(t, tag, b, nativeToo, 2, "")
	if got := e.Records(t)[tag].Target.Digest; got != b.root.Digest {
		t.Errorf("record of the tag: got target %s, want %s", got, b.root.Digest)
	}
	e.remove(t, imagepin.Key{Ref: tag, Target: nativeToo}, imagepin.Key{Ref: repo + "@" + b.root.Digest.String(), Target: nativeToo})
	if got := e.Records(t)[tag].Target.Digest; got != a.root.Digest {
		t.Errorf("record of the tag after the removal: got target %s, want %s", got, a.root.Digest)
	}
	e.wantSound(t)
}

// TestPutOfTheSameWritesNothing checks that Put of known entries writes nothing.
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
				t.Errorf("restart %v: %s: got change %+v, %v, want none", restart, target, change, err)
			}
		}
		if e.records.writes != 0 {
			t.Errorf("restart %v: wrote %d times, want 0", restart, e.records.writes)
		}
		if after, _ := e.store.Get(imagepin.Key{Ref: tag, Target: native}); !after.ReadyAt.Equal(before.ReadyAt) {
			t.Errorf("restart %v: the ready time of the key changed", restart)
		}
	}
}

// TestManifestsThatShareAConfiguration checks manifests with one configuration, for example gzip and zstd variants.
func TestManifestsThatShareAConfiguration(t *testing.T) {
	e := newEnv(t)
	of := func(compression string) image {
		img := e.blobs.Image("linux/amd64", "same", map[string]string{"compression": compression})
		return image{root: e.blobs.Index(img.Manifest), amd64: img}
	}
	gzip, zstd := of("gzip"), of("zstd")
	if gzip.amd64.Config.Digest != zstd.amd64.Config.Digest || gzip.amd64.Manifest.Digest == zstd.amd64.Manifest.Digest {
		t.Fatal("the two images must have one configuration and different manifests")
	}
	id := gzip.amd64.Config.Digest.String()
	e.pull(t, repo+":gzip", gzip, native, 0, "")
	e.pull(t, repo+":zstd", zstd, native, 1, "")
	if got := e.Records(t)[id].Target.Digest; got != gzip.root.Digest {
		t.Errorf("record of the ID: got target %s, want %s", got, gzip.root.Digest)
	}
	e.remove(t, keysOf(entries(repo+":gzip", gzip, native, 0))...)
	e.wantRecords(t, map[string]digest.Digest{
		id: zstd.root.Digest, repo + ":zstd": zstd.root.Digest, repo + "@" + zstd.root.Digest.String(): zstd.root.Digest,
	})
	if e.HasBlob(t, gzip.amd64.Manifest.Digest) {
		t.Error("the record of the ID keeps a removed manifest")
	}
	e.wantSound(t)
	e.remove(t, keysOf(entries(repo+":zstd", zstd, native, 1))...)
	e.WantEmpty(t)
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
	e.wantSound(t)
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
				t.Errorf("after %s: %s lacks labels of others: %v", after, name, labels)
			}
		}
		if e.Records(t)[record].Labels[newer] == "" {
			t.Errorf("after %s: the key of a newer release is missing", after)
		}
	}
	e.pull(t, tag, a, nativeToo, 1, "proof")
	check("a pull for another snapshotter")
	e.remove(t, keysOf(entries(tag, a, native, 0))...)
	check("a removal for one snapshotter")
	e.pull(t, tag, b, nativeToo, 2, "")
	check("a move of the tag")
	if _, err := e.store.Sync(e.ctx, record); err != nil {
		t.Fatal(err)
	}
	check("a sync of the record")
}

func TestProofs(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "p0")
	record := repo + "@" + i.root.Digest.String()
	on := func(name string) []string {
		var found []string
		for _, p := range imagepin.ProofsOf(e.Records(t)[name].Labels) {
			found = append(found, p.MAC)
		}
		slices.Sort(found)
		return found
	}
	wantEqual(t, "proofs on the digest's record", on(record), []string{"p0"})
	wantEqual(t, "proofs on the tag", on(tag), nil)
	if !e.store.HasProof("other", "p0") || e.store.HasProof("other") || e.store.HasProof() {
		t.Error("HasProof is wrong")
	}

	// A full record drops the least recently used proof, so give each proof its own time.
	e.label(t, record, imagepin.ProofLabelPrefix+"p0", "2026-01-01T00:00:00Z shop")
	for n := 1; n < imagepin.MaxProofs; n++ {
		proof := fmt.Sprintf("p%d", n)
		if change, err := e.store.Put(e.ctx, proof, entries(tag, i, native, 0)...); err != nil || !change.Wrote {
			t.Fatalf("got change %+v, %v, want a write", change, err)
		}
		e.label(t, record, imagepin.ProofLabelPrefix+proof, fmt.Sprintf("2026-01-02T%02d:%02d:00Z shop", n/60, n%60))
	}
	if got := on(record); len(got) != imagepin.MaxProofs {
		t.Errorf("got %d proofs %v, want %d", len(got), got, imagepin.MaxProofs)
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
		dropped := map[bool]string{false: "p0", true: "p1"}[restart]
		if got := on(record); len(got) != imagepin.MaxProofs || slices.Contains(got, dropped) || !slices.Contains(got, next) {
			t.Errorf("restart %v: got proofs %v, want %s instead of %s", restart, got, next, dropped)
		}
		if e.store.HasProof(dropped) || !e.store.HasProof(next) || !e.store.HasProof("p2") {
			t.Errorf("restart %v: the proofs of the store differ from those of the record", restart)
		}
	}

	// A proof is removed with the records that carry it.
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	if e.store.HasProof("p2", "next-false", "next-true") {
		t.Error("the store has proofs of a removed image")
	}
}

// TestProofUses records the use of a proof once a day, with the namespace of the pod. A tenant that pulls with other credentials does
// not push out the proofs of others.
func TestProofUses(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	all := entries(tag, i, native, 0)
	record := all[0].Record
	e.pull(t, tag, i, native, 0, ProofText("victim", "shop"))
	put := func(proof string, wrote bool) {
		t.Helper()
		if recorded, err := e.store.Recorded(e.ctx, proof, all...); err != nil || recorded == wrote {
			t.Errorf("%s: recorded %v, %v", proof, recorded, err)
		}
		writes := e.records.writes
		if change, err := e.store.Put(e.ctx, proof, all...); err != nil || change.Wrote != wrote || (e.records.writes > writes) != wrote {
			t.Errorf("%s: change %+v, %v, %d writes", proof, change, err, e.records.writes-writes)
		}
	}
	put(ProofText("victim", "shop"), false)
	put(ProofText("victim", "team"), false)
	// The last use was days ago.
	e.label(t, record, imagepin.ProofLabelPrefix+"victim", "2026-01-02T03:04:05Z shop")
	e.restart()
	e.load(t)
	put("", false)
	put(ProofText("victim", "team"), true)
	put(ProofText("victim", "team"), false)
	if proofs := e.store.Proofs(record); len(proofs) != 1 || proofs[0].Namespace != "team" || time.Since(proofs[0].UsedAt) > time.Hour {
		t.Errorf("got %+v", proofs)
	}
	e.label(t, record, imagepin.ProofLabelPrefix+"victim", "2026-01-02T03:04:05Z shop")
	e.restart()
	e.load(t)
	for n := range 2 * imagepin.MaxProofs {
		put(ProofText(fmt.Sprintf("flood-%d", n), "evil"), true)
	}
	if got := len(e.store.Proofs(record)); got != imagepin.MaxProofs || !e.store.HasProof("victim") {
		t.Errorf("%d proofs, the victim's is there: %v", got, e.store.HasProof("victim"))
	}
}

// TestPullOfAnAdoptedImage checks that a pull moves the key of an adopted image from the tag's record to the record of
// the digest.
func TestPullOfAnAdoptedImage(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, native)
	if _, err := e.Images.Create(e.ctx, images.Image{Name: tag, Target: i.root, Labels: map[string]string{"a": "b"}}); err != nil {
		t.Fatal(err)
	}
	done()
	wantEqual(t, "unaccounted records", e.load(t), []string{tag})
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
		t.Error("a label of the other tool is missing")
	}
	e.wantSound(t)
	e.remove(t, keysOf(entries(tag, i, native, 0))...)
	e.WantEmpty(t)
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
				t.Errorf("Find(%q) returns several images", name)
			}
			got = entry.ImageID
		}
		if got != want {
			t.Errorf("Find(%q): got %q, want %q", name, got, want)
		}
	}

	// A prefix of several IDs finds none of them.
	if es := e.store.Find("sha256:"); len(es) > 0 {
		t.Errorf("Find of an ambiguous prefix: got %v, want nothing", keysOf(es))
	}
	e.remove(t, keysOf(entries("docker.io/library/busybox:latest", busybox, native, 0))...)
	for _, name := range []string{"busybox", id.String(), id.Encoded()[:12], "", "sha256:"} {
		if es := e.store.Find(name); len(es) > 0 {
			t.Errorf("Find(%q) after the removal: got %v, want nothing", name, keysOf(es))
		}
	}
}

// TestReleaseOrphans checks that a start releases a snapshot that no key needs, which a removal that failed after its
// writes left.
func TestReleaseOrphans(t *testing.T) {
	e := newEnv(t)
	i := e.image("a")
	e.pull(t, tag, i, native, 0, "")
	e.pull(t, tag, i, nativeToo, 1, "")
	cause := errors.New("no space")
	e.store.Configuration().Content = ctdtest.Content{Store: e.Content, Before: ctdtest.Fail("Update", cause)}
	if _, err := e.store.Remove(e.ctx, keysOf(entries(tag, i, native, 0))...); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	e.Collect(t)
	if !e.HasSnapshot(t, "first", i.amd64.ChainID) {
		t.Fatal("the failed removal left no orphaned snapshot")
	}
	e.restart()
	e.load(t)
	for range 2 {
		have, err := newChecker(e.store).Inventory(e.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.store.ReleaseOrphans(e.ctx, have.Unpacked()); err != nil {
			t.Fatal(err)
		}
	}
	if e.HasSnapshot(t, "first", i.amd64.ChainID) || !e.HasSnapshot(t, "second", i.amd64.ChainID) {
		t.Error("the node does not have exactly the snapshots of the keys")
	}
	e.wantSound(t)

	// Without orphans, nothing is written.
	have, err := newChecker(e.store).Inventory(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	e.store.Configuration().Content = ctdtest.Content{Store: e.Content, Before: ctdtest.Fail("Update", cause)}
	if err := e.store.ReleaseOrphans(e.ctx, have.Unpacked()); err != nil {
		t.Errorf("ReleaseOrphans wrote without orphans: %v", err)
	}
}

func TestConcurrentWriters(t *testing.T) {
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
		t.Errorf("got %d keys, want %d, two for every second image", got, len(all))
	}
	e.wantSound(t)

	stopped, cancel := context.WithCancelCause(e.ctx)
	cancel(errStopped)
	unlock, err := e.store.Lock(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := e.store.Put(stopped, "", entries(tag, all[0], native, 0)...); !errors.Is(err, errStopped) {
		t.Errorf("Put with a canceled context: got %v, want %v", err, errStopped)
	}
}
