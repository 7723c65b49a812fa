package layerfiles

import (
	"archive/tar"
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRandomLayers compares Apply with containerd for layers whose few names make them collide in every way.
func TestRandomLayers(t *testing.T) {
	names := []string{"a", "b", "c", "..", ".", ".wh.a", ".wh.b", ".wh..wh..opq"}
	types := []byte{tar.TypeReg, tar.TypeReg, tar.TypeDir, tar.TypeDir, tar.TypeSymlink, tar.TypeLink, tar.TypeFifo, tar.TypeChar, tar.TypeXGlobalHeader}
	whole := 0
	for seed := range uint64(150) {
		r := rand.New(rand.NewPCG(seed, 0))
		path := func() string {
			var parts []string
			for range 1 + r.IntN(3) {
				parts = append(parts, names[r.IntN(len(names)-3*r.IntN(2))])
			}
			return strings.Join(parts, "/")
		}
		var layers [][]byte
		for range 1 + r.IntN(3) {
			var headers []tar.Header
			for range 1 + r.IntN(5) {
				h := tar.Header{Typeflag: types[r.IntN(len(types))], Name: path(), Mode: r.Int64N(0o10000), Uid: r.IntN(3), Gid: r.IntN(3)}
				switch h.Typeflag {
				case tar.TypeReg:
					h.Gname = strings.Repeat("x", r.IntN(3))
				case tar.TypeChar:
					h.Devmajor, h.Devminor = 1, r.Int64N(9)
				case tar.TypeSymlink, tar.TypeLink:
					h.Linkname = strings.Repeat("/", r.IntN(2)) + path()
				case tar.TypeXGlobalHeader:
					h = tar.Header{Typeflag: h.Typeflag, Name: "d", PAXRecords: map[string]string{"comment": "x"}}
				}
				headers = append(headers, h)
			}
			layers = append(layers, archiveOf(t, headers...))
		}
		for _, rules := range []Rules{Merge, Overlay} {
			dirs, trees, ok := unpack(t, rules, true, layers)
			if !ok {
				continue
			}
			whole++
			for n, dir := range dirs {
				if wantIntact(t, trees[n], dir); t.Failed() {
					for _, l := range layers {
						logLayer(t, l)
					}
					t.Fatalf("seed %d, rules %d, layer %d", seed, rules, n)
				}
			}
		}
	}
	if whole < 50 {
		t.Errorf("containerd unpacked only %d of 300 images", whole)
	}
}

func logLayer(t *testing.T, layer []byte) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(layer)); ; {
		h, err := r.Next()
		if err != nil {
			t.Log("---")
			return
		}
		t.Logf("%c %q %q %o", h.Typeflag, h.Name, h.Linkname, h.Mode)
	}
}
