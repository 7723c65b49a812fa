package blobtable_test

import (
	_ "crypto/sha512" // for digests
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/internal/heaptest"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobtable"
)

func TestTable(t *testing.T) {
	var table blobtable.Table[int]
	if table.Has(digest.FromString("0")) || table.Len() != 0 {
		t.Error("an empty table has something")
	}
	of := func(n int) digest.Digest {
		if n%3 == 0 {
			return digest.SHA512.FromString(fmt.Sprint(n))
		}
		return digest.FromString(fmt.Sprint(n))
	}
	const number = 1000
	for n := range number {
		if got, added, err := table.Add(of(n)); got != n || !added || err != nil {
			t.Fatalf("%d: got %d, %v, %v", n, got, added, err)
		}
		*table.At(n) = n
	}
	for n := range number {
		got, ok := table.Find(of(n))
		if again, added, _ := table.Add(of(n)); got != n || !ok || again != n || added || *table.At(n) != n || table.Digest(n) != of(n) {
			t.Fatalf("%d: got %d, %v, %d, %v, %d, %s", n, got, ok, again, added, *table.At(n), table.Digest(n))
		}
	}
	for _, d := range []digest.Digest{of(number), of(number + 2)} {
		if table.Has(d) {
			t.Errorf("it has %s", d)
		}
	}
	upper := "sha256:" + digest.Digest(strings.ToUpper(of(1).Encoded()))
	for _, d := range []digest.Digest{"", "sha256:", digest.SHA384.FromString("0"), of(1)[:70] + "x", of(1) + "0", upper} {
		if table.Has(d) {
			t.Errorf("it has %s", d)
		}
		if _, _, err := table.Add(d); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: got %v", d, err)
		}
	}
	if table.Len() != number {
		t.Errorf("got %d digests", table.Len())
	}
}

func TestMemory(t *testing.T) {
	const number = 1 << 16
	table, grown := heaptest.Of(t, func() *blobtable.Table[uint32] {
		var table blobtable.Table[uint32]
		for n := range number {
			if _, _, err := table.Add(digest.FromString(fmt.Sprint(n))); err != nil {
				t.Fatal(err)
			}
		}
		return &table
	})
	if each := grown.Kept / int64(table.Len()); each > 80 {
		t.Errorf("%d bytes for each digest", each)
	}
}
