package power

import (
	"os"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/integration/node"
	"github.com/imagepin/imagepin/integration/power/disk"
	"github.com/imagepin/imagepin/integration/power/image"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// fleet has what the power cuts of one mode have in common: a registry, and a machine whose disk is "installed" at first.
type fleet struct {
	t         *testing.T
	reg       *registry.Registry
	machine   *machine
	installed *disk.Disk
	promised  promise // of the disk "installed"

	snapshotters map[string]string // of the handlers

	// The images, as references. kept and pinned are on the disk for both handlers, and web and db are in the lock. large, other
	// and single, which has one large layer, are not on the disk. pinned, web and db have two versions.
	kept, pinned, web, db, large, other, single string

	pulls     []pulled                // after each boot
	versions  map[string][]string     // digests of the manifests of a reference's versions
	current   map[string]*image.Image // that the registry has for a reference
	byID      map[string]*image.Image
	manifests map[string]*image.Image // by the digest of the manifest

	// The locks with the first and with the second versions, their digests, and their bundles.
	locked  [2]map[string]string
	locks   [2]string
	bundles [2]string
}

// diskSize is the size of disks in bytes. A disk needs memory for what is written only.
const diskSize = 1 << 30

// how is what processes of a fleet do before they record an image. They sync as configured. The system call syncfs fails if filesOnly
// is set.
type how struct{ sync, filesOnly bool }

func newFleet(t *testing.T, mode node.Mode, second string, h how) *fleet {
	t.Helper()
	f := &fleet{
		t: t, reg: testkit.Registry(t), snapshotters: map[string]string{"": "overlayfs", testkit.Second: second},
		versions: map[string][]string{}, current: map[string]*image.Image{}, byID: map[string]*image.Image{}, manifests: map[string]*image.Image{},
	}
	f.machine = newMachine(t, f.reg, options(mode, second, h.sync), !h.filesOnly)
	f.push()
	f.bundle()
	f.install()
	return f
}

// push makes the images.
func (f *fleet) push() {
	f.t.Helper()
	small := image.Options{Layers: 3, Shared: 1, Files: 12, Size: 100 << 10}
	middle := image.Options{Layers: 4, Shared: 2, Files: 20, Size: 500 << 10}
	big := image.Options{Layers: 8, Shared: 4, Files: 40, Size: 1 << 20}
	for _, i := range []struct {
		ref      *string
		name     string
		opts     image.Options
		versions []string
		handlers []string
	}{
		{&f.kept, "kept:1", small, []string{"1"}, []string{"", testkit.Second}},
		{&f.pinned, "pinned:1", small, []string{"1", "2"}, []string{"", testkit.Second}},
		{&f.web, "shop/web:1", middle, []string{"1", "2"}, []string{"", testkit.Second}},
		{&f.db, "shop/db:1", small, []string{"1", "2"}, []string{"", testkit.Second}},
		{&f.large, "large:1", big, []string{"1"}, nil},
		{&f.single, "single:1", image.Options{Layers: 1, Files: 40, Size: 4 << 20, Random: true}, []string{"1"}, nil},
		{&f.other, "other:1", small, []string{"1"}, []string{"", testkit.Second}},
	} {
		ref := f.reg.Ref(i.name)
		*i.ref = ref
		for _, version := range i.versions {
			i.opts.Version = i.name + " " + version
			img, err := makeImage(i.opts)
			if err != nil {
				f.t.Fatal(err)
			}
			d := testkit.Push(f.t, f.reg, i.name, img).String()
			f.versions[ref] = append(f.versions[ref], d)
			f.current[ref], f.byID[img.ID], f.manifests[d] = img, img, img
		}
		for _, handler := range i.handlers {
			f.pulls = append(f.pulls, pulled{ref, handler})
		}
	}
}

// made has the images that were made already, by their options.
var made sync.Map

func makeImage(opts image.Options) (*image.Image, error) {
	once, _ := made.LoadOrStore(opts, sync.OnceValues(func() (*image.Image, error) { return image.New(opts) }))
	return once.(func() (*image.Image, error))()
}

// bundle makes the locks and their bundles.
func (f *fleet) bundle() {
	f.t.Helper()
	m := f.machine
	for i, name := range []string{"first", "second"} {
		f.locked[i] = map[string]string{f.web: f.versions[f.web][i], f.db: f.versions[f.db][i]}
		lock := m.WriteLock(name+".yaml", f.locked[i])
		text, err := os.ReadFile(lock)
		m.must(err)
		f.locks[i], f.bundles[i] = digest.FromBytes(text).String(), m.Path(name+".tar.zst")
		m.must(m.command("bundle", lock, "-o", f.bundles[i]))
	}
}

// install makes the disk "installed": images that were pulled, a lock that was applied, and a pin. The machine is shut down,
// so that all of it is on the disk.
func (f *fleet) install() {
	f.t.Helper()
	formatted, err := disk.Format(diskSize)
	if err != nil {
		f.t.Fatal(err)
	}
	m := f.machine
	m.boot(formatted)
	f.promised = promise{images: map[pulled]*image.Image{}, pins: map[string][]string{}}
	m.must(m.command("pin", "set", f.pinned, f.versions[f.pinned][0]))
	f.promised.pins[f.pinned] = f.versions[f.pinned][:1]
	for handler := range f.snapshotters {
		m.MustPull(f.kept, handler)
		m.MustPull(f.pinned, handler)
		f.promised.images[pulled{f.kept, handler}] = f.current[f.kept]
	}
	m.must(m.command("apply", f.bundles[0]))
	f.promised.locks = []string{f.locks[0]}
	m.shutDown()
	f.installed = formatted
	f.installed.SetVolatileCache()
}
