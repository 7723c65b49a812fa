package store_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	bolt "go.etcd.io/bbolt"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// inMemory puts the benchmark's directories into memory, where syncs take no time.
func inMemory(b *testing.B) {
	const shm = "/dev/shm"
	if _, err := os.Stat(shm); err == nil {
		b.Setenv("TMPDIR", shm)
	}
}

func benchRef(i int) string { return fmt.Sprintf("registry.example/team/app%d:1", i) }

// fillAtOnce is fill with hundreds of images in each transaction. A transaction may also change content and snapshots
// because nothing else uses the databases.
func (e *env) fillAtOnce(b testing.TB, count int) {
	b.Helper()
	const batch = 500
	for from := 0; from < count; from += batch {
		err := e.DB.Update(func(tx *bolt.Tx) error {
			ctx := boltutil.WithTransaction(e.ctx, tx)
			for i := from; i < min(from+batch, count); i++ {
				if err := e.putOne(ctx, b, i); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func (e *env) putOne(ctx context.Context, b testing.TB, i int) error {
	e.blobs = ctdtest.Blobs{}
	img := e.image(fmt.Sprint("image ", i))
	for _, d := range []ocispec.Descriptor{img.arm.Manifest, img.arm.Config, img.arm.Layer} {
		delete(e.blobs, d.Digest) // a pull does not fetch other platforms
	}
	target := []runtimeplatform.Target{native, nativeToo}[i%2]
	e.place(ctx, b, img, target)
	_, err := e.store.Put(ctx, "", entries(benchRef(i), img, target, i)...)
	return err
}

// benchCounts returns the numbers of images of the benchmarks whose result depends on it. Short mode leaves out 10,000:
// writing them takes longer than all other benchmarks of the package.
func benchCounts() []int {
	if testing.Short() {
		return []int{1_000}
	}
	return []int{1_000, 10_000}
}

// BenchmarkLoad measures a start.
func BenchmarkLoad(b *testing.B) {
	for _, count := range benchCounts() {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			inMemory(b)
			e := newEnv(b)
			e.fillAtOnce(b, count)
			b.ReportAllocs()
			for b.Loop() {
				e.restart()
				if _, err := e.loadFor(e.ctx); err != nil {
					b.Fatal(err)
				}
			}
			if got := len(e.store.Images()); got != count {
				b.Fatalf("got %d images, want %d", got, count)
			}
		})
	}
}

// BenchmarkCheck measures a check of keys without findings.
func BenchmarkCheck(b *testing.B) {
	for _, count := range benchCounts() {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			inMemory(b)
			e := newEnv(b)
			e.fillAtOnce(b, count)
			b.ReportAllocs()
			for b.Loop() {
				if r, err := newChecker(e.store).Check(e.ctx, nil); err != nil || len(r.Findings) > 0 {
					b.Fatal(r.Findings, err)
				}
			}
		})
	}
}

// BenchmarkFind measures lookups of an image by each kind of name.
func BenchmarkFind(b *testing.B) {
	const count = 1_000
	inMemory(b)
	e := newEnv(b)
	e.fillAtOnce(b, count)
	one := e.store.ByRef(benchRef(count / 2))[0]
	for what, name := range map[string]string{
		"reference": one.Ref, "digest": one.Record, "ID": one.ImageID.String(), "ID prefix": one.ImageID.Encoded()[:12], "unknown": "registry.example/none:1",
	} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if found := e.store.Find(name); (len(found) == 0) != (what == "unknown") {
					b.Fatalf("%s: got %d entries", what, len(found))
				}
			}
		})
	}
}

// BenchmarkImages measures listing all images.
func BenchmarkImages(b *testing.B) {
	const count = 1_000
	inMemory(b)
	e := newEnv(b)
	e.fillAtOnce(b, count)
	b.ReportAllocs()
	for b.Loop() {
		if got := len(e.store.Images()); got != count {
			b.Fatalf("got %d images, want %d", got, count)
		}
	}
}
