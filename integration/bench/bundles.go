package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/images"
	"github.com/imagepin/imagepin/integration/measure"
	"github.com/imagepin/imagepin/integration/node"
)

// bundles are the scenarios of bundles of a small and a large number of images. Their names have the size in the registry.
func bundles(z sizes) []scenario {
	var all []scenario
	for _, size := range z.bundles {
		f := bundleFleet{z, size}
		all = append(all, f.writes(), f.copies(), f.applies(".tar"), f.applies(".tar.zst"))
	}
	return all
}

// bundleSize is the size of a bundle.
type bundleSize struct {
	images int
	name   string // for the names of rows
}

// bundleFleet are images for a bundle.
type bundleFleet struct {
	z    sizes
	size bundleSize
}

// push pushes the images, and writes their lock. It returns the path of the lock.
func (f bundleFleet) push(ctx context.Context, b *bench, dir string) (path string, all []locked, err error) {
	tree := tree{layers: 4, files: f.z.bundleFiles, size: f.z.bundleLayer, seed: 9}
	for i := range f.size.images {
		repository := fmt.Sprintf("bundle/%d", i)
		// Each image has another variant of the layers.
		ref, err := b.push(ctx, repository, tree, i+1)
		if err != nil {
			return "", nil, err
		}
		all = append(all, locked{ref, digest.Digest(b.pushed[fmt.Sprintf("%s:v%d", repository, i+1)].digest)})
	}
	path = filepath.Join(dir, fmt.Sprintf("%d.lock.yaml", f.size.images))
	return path, all, writeLock(path, all)
}

func (f bundleFleet) bundle(ctx context.Context, lock, file string) (program, error) {
	return runProgram(ctx, "imagepin", "bundle", lock, "-o", file, "--platform", images.HostPlatform())
}

// writes are an export of images that the node has, and a bundle of them from the registry. Both are for one platform. The
// bundle is on the disk when the command ends, and what ctr has written may be in the page cache only.
func (f bundleFleet) writes() scenario {
	name := "bundle, " + f.size.name
	wall := row{name: name + ", beside ctr images export", budget: ratio(1)}
	synced := row{name: name + ", beside ctr images export: until it is on the disk", budget: ratio(1)}
	packed := row{name: name + ": zstd", own: true}
	peak := row{name: name + ": peak memory (RSS)", unit: bytes_, own: true}
	var refs []string
	return scenario{
		rows: []row{wall, synced, packed, peak}, fleet: fleet{bundles: true},
		setup: func(ctx context.Context, b *bench, p *pair) error {
			_, all, err := f.push(ctx, b, b.roots[0])
			for _, i := range all {
				refs = append(refs, i.ref)
			}
			if err != nil {
				return err
			}
			_, _, err = p.stock.pullAll(ctx, refs, 4)
			return err
		},
		run: func(ctx context.Context, b *bench, s *side) (_ sample, err error) {
			file := s.Path("bundle.tar")
			defer func() { err = errors.Join(err, os.Remove(file)) }()
			start := time.Now()
			if !s.ours {
				p, err := s.ctr(ctx, append([]string{"images", "export", "--platform", images.HostPlatform(), file}, refs...)...)
				if err != nil {
					return nil, err
				}
				if err := syncFile(file); err != nil {
					return nil, err
				}
				return sample{wall.name: float64(p.wall), synced.name: float64(time.Since(start))}, nil
			}
			lock, _, err := f.push(ctx, b, b.roots[0])
			if err != nil {
				return nil, err
			}
			p, err := f.bundle(ctx, lock, file)
			if err != nil {
				return nil, err
			}
			got := sample{wall.name: float64(p.wall), synced.name: float64(p.wall), peak.name: p.peak}
			p, err = f.bundle(ctx, lock, file+".zst")
			if err != nil {
				return nil, err
			}
			got.took(packed.name, p.wall)
			return got, os.Remove(file + ".zst")
		},
	}
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// copies are bundles beside what skopeo copy does, from the same registry. skopeo writes a file for each image.
func (f bundleFleet) copies() scenario {
	wall := row{name: "bundle, " + f.size.name + ", beside skopeo copy", budget: ratio(1)}
	return scenario{
		rows: []row{wall}, fleet: fleet{bundles: true},
		run: func(ctx context.Context, b *bench, s *side) (_ sample, err error) {
			lock, all, err := f.push(ctx, b, b.roots[0])
			if err != nil {
				return nil, err
			}
			dir := s.Path("copies")
			if err := os.Mkdir(dir, 0o755); err != nil {
				return nil, err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			if s.ours {
				p, err := f.bundle(ctx, lock, filepath.Join(dir, "bundle.tar"))
				return sample{wall.name: float64(p.wall)}, err
			}
			var args []string
			for i, image := range all {
				args = append(args, "docker://"+image.ref, fmt.Sprintf("oci-archive:%s:v1", filepath.Join(dir, fmt.Sprint(i, ".tar"))))
			}
			p, err := runProgram(ctx, "skopeocopy", args...)
			return sample{wall.name: float64(p.wall)}, err
		},
	}
}

// applies are an apply of a bundle, and an import of the same file with ctr. Both unpack the images.
func (f bundleFleet) applies(suffix string) scenario {
	name := "apply, " + f.size.name + ", " + strings.TrimPrefix(suffix, ".")
	wall := row{name: name + ", beside ctr images import", budget: ratio(1)}
	cpu := row{name: name + ": CPU"}
	peak := row{name: name + ": peak memory (RSS) of containerd", unit: bytes_}
	var (
		file string
		all  []locked
	)
	return scenario{
		rows: []row{wall, cpu, peak}, fleet: fleet{bundles: true}, restarts: true,
		setup: func(ctx context.Context, b *bench, p *pair) (err error) {
			var lock string
			if lock, all, err = f.push(ctx, b, b.roots[0]); err != nil {
				return err
			}
			file = filepath.Join(b.roots[0], "bundle"+suffix)
			if _, err = f.bundle(ctx, lock, file); err != nil {
				return err
			}
			return f.remove(ctx, p.stock, all) // what it has exported
		},
		run: func(ctx context.Context, b *bench, s *side) (sample, error) {
			if err := measure.ResetPeakRSS(s.PID()); err != nil {
				return nil, err
			}
			before, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			work := func() (program, error) { return s.ctr(ctx, "images", "import", "--snapshotter", snapshotter, file) }
			if s.ours {
				work = func() (program, error) { return s.imagepin(ctx, "apply", file, "--handler", "runc") }
			}
			p, err := work()
			if err != nil {
				return nil, err
			}
			got := sample{wall.name: float64(p.wall)}
			after, err := measure.CPU(s.PID())
			if err != nil {
				return nil, err
			}
			got.took(cpu.name, after-before)
			if got[peak.name], err = measure.PeakRSS(s.PID()); err != nil {
				return nil, err
			}
			for _, i := range all {
				if err := s.hasSnapshot(ctx, snapshotter, b.topOf(i.ref)); err != nil {
					return nil, fmt.Errorf("%s is not unpacked: %w", i.ref, err)
				}
			}
			return got, f.remove(ctx, s, all)
		},
	}
}

// topOf returns the name of the top snapshot of an image that was pushed.
func (b *bench) topOf(ref string) string { return b.pushed[strings.TrimPrefix(ref, b.reg.Ref(""))].top }

// remove removes the images by all their names, and waits until their content is gone.
func (f bundleFleet) remove(ctx context.Context, s *side, all []locked) error {
	ctx, cancel := context.WithTimeoutCause(namespaces.WithNamespace(ctx, node.Namespace), time.Minute, errors.New("timed out waiting until the images are removed"))
	defer cancel()
	if s.ours {
		if _, err := s.imagepin(ctx, "lock", "rm"); err != nil {
			return err
		}
	}
	digests := make(map[digest.Digest]bool)
	for _, i := range all {
		digests[i.digest] = true
	}
	for {
		// The CRI of stock containerd adds names after an import.
		records, err := s.Client().ImageService().List(ctx)
		if err != nil {
			return err
		}
		for _, r := range records {
			if !digests[r.Target.Digest] {
				continue
			}
			if err := s.Client().ImageService().Delete(ctx, r.Name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		if err := s.GC(ctx); err != nil {
			return err
		}
		gone := true
		for d := range digests {
			if _, err := s.Client().ContentStore().Info(ctx, d); err == nil {
				gone = false
			}
		}
		if gone {
			return nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}
