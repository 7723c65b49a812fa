package store

import (
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// full returns an entry whose fields all have a value.
func full(t *testing.T) imagepin.Entry {
	t.Helper()
	at := func(n int64) time.Time { return time.Unix(1_700_000_000+n, 5) }
	descriptor := func(name string) ocispec.Descriptor {
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(name), Size: 5}
	}
	e := imagepin.Entry{
		Key:  imagepin.Key{Ref: "registry.example/app:1", Target: runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "first"}},
		Root: descriptor("root"), Manifest: digest.FromString("manifest"), ImageID: digest.FromString("id"), ChainID: digest.FromString("chain"),
		Size: 9, User: "user", UserOmitted: true, ReadyAt: at(1), Source: imagepin.SourcePull, Host: "registry.example",
		DamagedAt: at(2), Durable: "boot", UsedAt: at(3), UnusedAt: at(4), Record: "record", RecordTarget: descriptor("root"),
	}
	for v, i := reflect.ValueOf(e), 0; i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Fatalf("the test has no value for %s", v.Type().Field(i).Name)
		}
	}
	return e
}

// TestHeld compares entries with what the index returns for them, and with what is returned for them when facts are shared. It fails
// if a field of Entry is not held.
func TestHeld(t *testing.T) {
	other := func(change func(*imagepin.Entry)) imagepin.Entry {
		e := full(t)
		change(&e)
		return e
	}
	long := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("manifest"), Size: 1, Platform: &ocispec.Platform{OS: "linux"}}
	entries := map[string]imagepin.Entry{
		"full":           full(t),
		"empty":          {},
		"another target": other(func(e *imagepin.Entry) { e.RecordTarget = ocispec.Descriptor{Digest: e.Manifest} }),
		"long target":    other(func(e *imagepin.Entry) { e.RecordTarget = long }),
		"long root":      other(func(e *imagepin.Entry) { e.Root = long }),
		"long both":      other(func(e *imagepin.Entry) { e.Root, e.RecordTarget = long, long }),
		"no annotations": other(func(e *imagepin.Entry) { e.RecordTarget.Annotations = map[string]string{} }),
		"another ref":    other(func(e *imagepin.Entry) { e.Ref = "registry.example/app:2" }),
		"never used":     other(func(e *imagepin.Entry) { e.UsedAt = time.Time{} }),
	}
	for i, v := 0, reflect.TypeFor[imagepin.Entry](); i < v.NumField(); i++ {
		entries["without "+v.Field(i).Name] = other(func(e *imagepin.Entry) { reflect.ValueOf(e).Elem().Field(i).SetZero() })
	}
	var all group
	for name, e := range entries {
		got := hold(&e, nil).entry()
		if !reflect.DeepEqual(got, e) {
			t.Errorf("%s: got %+v, want %+v", name, got, e)
		}
		again := hold(&e, all)
		if got := again.entry(); !reflect.DeepEqual(got, e) {
			t.Errorf("%s, shared: got %+v, want %+v", name, got, e)
		}
		all = append(all, again)
	}
}

// TestHeldTogether checks which keys of an image share their facts.
func TestHeldTogether(t *testing.T) {
	e := full(t)
	e.RecordTarget = ocispec.Descriptor{Digest: e.Manifest, Size: 3, Platform: &ocispec.Platform{OS: "linux"}}
	first := hold(&e, nil)
	e.RecordTarget.Platform = &ocispec.Platform{OS: "linux"} // equal
	e.Ref, e.ReadyAt, e.Target.Snapshotter = "registry.example/app@"+e.Root.Digest.String(), time.Now(), "second"
	if second := hold(&e, group{first}); second.facts != first.facts {
		t.Errorf("got facts %+v and %+v, want them shared", second.facts, first.facts)
	}
	e.Host = "mirror.example"
	if second := hold(&e, group{first}); second.facts == first.facts {
		t.Errorf("keys of the hosts %s and registry.example share their facts", e.Host)
	}
	// A change of the entry later must not change the index.
	h := hold(&e, nil)
	e.RecordTarget.Size = 77
	if got := h.entry().RecordTarget.Size; got != 3 {
		t.Errorf("the size of the record's target became %d", got)
	}
}

// TestHeldSize limits the memory of two keys of an image.
func TestHeldSize(t *testing.T) {
	const of2Entries = 2 * unsafe.Sizeof(imagepin.Entry{})
	if got := 2*unsafe.Sizeof(held{}) + unsafe.Sizeof(facts{}); got > of2Entries/3 {
		t.Errorf("two keys of an image take %d bytes, want at most a third of %d", got, of2Entries)
	}
	t.Logf("%d for a key, %d for its facts, %d for an entry", unsafe.Sizeof(held{}), unsafe.Sizeof(facts{}), unsafe.Sizeof(imagepin.Entry{}))
}
