package store

import (
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/go-digest/digestset"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestShortID compares lookups with the set that containerd's CRI uses.
func TestShortID(t *testing.T) {
	x, set := newIndex(), digestset.NewSet()
	var all []digest.Digest
	for i := range 300 {
		id := digest.FromString(fmt.Sprint(i))
		if i%50 == 0 {
			id = digest.SHA512.FromString(fmt.Sprint(i))
		}
		all = append(all, id)
		x.add(&imagepin.Entry{Key: imagepin.Key{Ref: fmt.Sprint(i)}, ImageID: id, Record: fmt.Sprint(i)})
		if err := set.Add(id); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"", ":", "sha256", "sha256:", "sha512:", "md5:", "a:b:c", "registry:5000/app", "xyz", "sha256:xyz", "A", "sha256 :", "-"}
	for _, id := range all {
		for length := 1; length <= len(id.Encoded()); length++ {
			short := id.Encoded()[:length]
			names = append(names, short, short+"g", short+"-", "sha256:"+short, "sha512:"+short, "md5:"+short)
		}
		names = append(names, id.String()+"0", id.Encoded()+"0")
	}
	found := 0
	for _, name := range names {
		want, err := set.Lookup(name)
		if name == "" || name[len(name)-1] == ':' {
			want, err = "", digestset.ErrDigestNotFound // Find does not ask for them
		}
		got := x.byShortID(name)
		if err != nil && got != nil || err == nil && (len(got) != 1 || got[0].ImageID != want) {
			t.Errorf("%q: got %v, want %q, %v", name, got, want, err)
		}
		if err == nil {
			found++
		}
	}
	if found < len(all)*40 {
		t.Errorf("only %d of %d names are found", found, len(names))
	}
}
