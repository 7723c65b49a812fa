package store_test

import (
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
)

// TestTagsBeyondTheLimitCarryTheirOwnKeys checks that the record of a digest carries the keys of its first tags, and
// further tags carry their own keys. A start reads both, and a removal removes both.
func TestTagsBeyondTheLimitCarryTheirOwnKeys(t *testing.T) {
	const count = MaxKeysPerRecord + 4
	e := newEnv(t)
	of := e.tagsOf(t, count)
	record := of(0)[0].Record
	if got := len(e.keyLabels(t, record)); got != MaxKeysPerRecord {
		t.Errorf("record of the digest: got %d keys, want %d", got, MaxKeysPerRecord)
	}
	for i := range count {
		var want []string
		if 1+i >= MaxKeysPerRecord { // one of the keys is the key of the digest
			want = texts(of(i)[1].Key)
		}
		wantEqual(t, fmt.Sprintf("keys on tag %d", i), e.keyLabels(t, of(i)[1].Ref), want)
	}
	keys := e.keys()
	e.restart()
	if unknown := e.load(t); len(unknown) > 0 {
		t.Errorf("unaccounted records: %q", unknown)
	}
	wantEqual(t, "keys after a start", e.keys(), keys)
	e.records.writes = 0
	for i := range count {
		if _, err := e.store.Put(e.ctx, "", of(i)...); err != nil {
			t.Fatal(err)
		}
	}
	if e.records.writes != 0 {
		t.Errorf("recording the same keys again wrote %d times, want 0", e.records.writes)
	}
	e.wantSound(t)
	for i := range count {
		e.remove(t, keysOf(of(i))...)
	}
	e.WantEmpty(t)
}

// TestMoveOfTagThatCarriesKeys pulls a tag that carries keys of two targets for one of them, and the tag moves. Then
// the record of the old digest carries the key of the other target.
func TestMoveOfTagThatCarriesKeys(t *testing.T) {
	e := newEnv(t)
	e.maxKeys = 1
	e.restart()
	before, after := e.image("before"), e.image("after")
	e.pull(t, tag, before, native, 0, "")
	e.pull(t, tag, before, nativeToo, 1, "")
	old := entries(tag, before, nativeToo, 1)
	wantEqual(t, "keys on the tag", e.keyLabels(t, tag), texts(entries(tag, before, native, 0)[1].Key, old[1].Key))

	e.pull(t, tag, after, native, 2, "")
	moved := entries(tag, after, native, 2)
	wantEqual(t, "keys on the moved tag", e.keyLabels(t, tag), texts(moved[1].Key))
	wantEqual(t, "keys on the old digest", e.keyLabels(t, old[0].Record),
		texts(entries(tag, before, native, 0)[0].Key, old[0].Key, old[1].Key))
	e.wantRecords(t, map[string]digest.Digest{
		tag: after.root.Digest, moved[0].Record: after.root.Digest, after.amd64.Config.Digest.String(): after.root.Digest,
		old[0].Record: before.root.Digest, before.amd64.Config.Digest.String(): before.root.Digest,
	})
	e.wantSound(t)
	keys := e.keys()
	e.restart()
	if unknown := e.load(t); len(unknown) > 0 {
		t.Errorf("unaccounted records: %q", unknown)
	}
	wantEqual(t, "keys after a start", e.keys(), keys)
}
