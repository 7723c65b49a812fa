package usage

import (
	"errors"
	"reflect"
	"testing"

	"github.com/opencontainers/go-digest"
)

func needs(blobs []digest.Digest, tops ...snapshot) need {
	n := newNeed()
	for _, d := range blobs {
		n.blobs[d] = true
	}
	for _, s := range tops {
		n.snapshots[s] = true
	}
	return n
}

// Two images share a base layer and its snapshot, a pin retains a layer of the second, and one blob has no image.
func TestShare(t *testing.T) {
	all := map[digest.Digest]blob{"base": {size: 1000}, "a": {size: 10}, "b": {size: 20}, "kept": {size: 5}, "old": {size: 7}}
	answers := map[string]answer{"sn": {
		parents: map[string]string{"base": "", "a": "base", "b": "base", "b2": "b", "old": "base", "container": "a"},
		sizes:   map[string]int64{"base": 3000, "a": 30, "b": 60, "b2": 600, "old": 9},
	}}
	a := needs([]digest.Digest{"base", "a"}, snapshot{"sn", "a"})
	b := needs([]digest.Digest{"base", "b", "kept"}, snapshot{"sn", "b2"})
	u := share([]need{a, b}, needs([]digest.Digest{"kept", "old"}, snapshot{"sn", "b"}), all, answers)
	want := Usage{
		Images: []Image{
			{Content: 1010, Unpacked: []Unpacked{{Snapshotter: "sn", Size: 3030}}, Unique: 40, Shared: 4000},
			{Content: 1025, Unpacked: []Unpacked{{Snapshotter: "sn", Size: 3660}}, Unique: 620, Shared: 4065},
		},
		Content: Sum{4, 1035}, Other: Sum{1, 7}, Snapshotters: []Snapshotter{{Name: "sn", Sum: Sum{4, 3690}, Other: Sum{1, 9}}},
	}
	if !reflect.DeepEqual(u, want) {
		t.Errorf("got  %+v\nwant %+v", u, want)
	}
}

// The sizes of an image in several snapshotters add up. Those of a snapshotter that does not respond are unknown.
func TestShareBetweenSnapshotters(t *testing.T) {
	silent := errors.New("no answer")
	answers := map[string]answer{
		"first":  {parents: map[string]string{"a": ""}, sizes: map[string]int64{"a": 30}},
		"second": {parents: map[string]string{"a": ""}, sizes: map[string]int64{"a": 50}},
		"silent": {err: silent},
	}
	u := share([]need{needs(nil, snapshot{"first", "a"}, snapshot{"second", "a"}, snapshot{"silent", "a"})}, newNeed(), nil, answers)
	want := Usage{
		Images: []Image{{Unpacked: []Unpacked{{Snapshotter: "first", Size: 30}, {Snapshotter: "second", Size: 50}, {Snapshotter: "silent", Unknown: true}}, Unique: 80}},
		Snapshotters: []Snapshotter{
			{Name: "first", Sum: Sum{1, 30}}, {Name: "second", Sum: Sum{1, 50}}, {Name: "silent", Err: silent},
		},
	}
	if !reflect.DeepEqual(u, want) {
		t.Errorf("got  %+v\nwant %+v", u, want)
	}
}
