package power

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	api "github.com/imagepin/imagepin/api/imagepin/v1"
	"github.com/imagepin/imagepin/integration/power/image"
	"github.com/imagepin/imagepin/integration/registry"
	"github.com/imagepin/imagepin/integration/testkit"
)

// invariant is what must hold after each power loss.
type invariant string

const (
	intact    invariant = "no image is listed and damaged"
	whole     invariant = "no lock is applied in part"
	keptPins  invariant = "no pin is lost"
	present   invariant = "no pull that has succeeded is lost"
	recovered invariant = "the next pull makes an image intact"
	once      invariant = "no pull that has succeeded is repeated"
)

// finding is a violation.
type finding struct {
	invariant
	text string
}

// verification verifies a machine that has booted after a power loss.
type verification struct {
	*fleet
	*machine
	promise
	findings []finding
	compared map[string]bool // "snapshotter/name" of snapshots that are intact, and so are not compared again
}

// verify boots the disk of a cut and returns what violates the invariants.
func (f *fleet) verify(c cut) []finding {
	f.t.Helper()
	v := &verification{fleet: f, machine: f.machine, promise: c.promise.clone(), compared: map[string]bool{}}
	v.bootCopy(c.disk)
	defer v.losePower()
	v.wantIntact()
	v.wantBlobs()
	locked := v.wantWhole()
	v.wantPins()
	v.wantPresent()
	v.wantRecovery(slices.Concat(c.pulls, v.pulls), locked)
	return v.findings
}

func (v *verification) violates(i invariant, format string, args ...any) {
	v.findings = append(v.findings, finding{i, fmt.Sprintf(format, args...)})
}

// wantIntact compares the snapshots of all images that are listed.
func (v *verification) wantIntact() {
	v.T.Helper()
	list, err := v.ListImages(v.Ctx)
	if err != nil {
		v.T.Fatal(err)
	}
	keys := v.keys()
	for _, listed := range list {
		img := v.byID[listed.Id]
		if img == nil {
			v.violates(intact, "unknown image %v", listed)
			continue
		}
		for _, k := range keys {
			if k.ImageId == img.ID && k.State != "damaged" && k.State != "comparing" {
				v.compare(intact, k.Ref+" ("+k.Source+")", img, k.Target.Snapshotter)
			}
		}
		if !slices.ContainsFunc(keys, func(k *api.Key) bool { return k.ImageId == img.ID }) {
			v.compare(intact, fmt.Sprint(listed.RepoTags), img, "overlayfs")
		}
	}
}

// wantBlobs compares all blobs with their digests.
func (v *verification) wantBlobs() {
	v.T.Helper()
	blobs, err := filepath.Glob(v.Path("root", "io.containerd.content.v1.content", "blobs", "sha256", "*"))
	if err != nil || len(blobs) == 0 {
		v.violates(intact, "no blobs: %v", err)
	}
	for _, path := range blobs {
		b, err := os.ReadFile(path)
		if err != nil || digest.FromBytes(b).Encoded() != filepath.Base(path) {
			v.violates(intact, "blob %s: %d bytes (%v)", filepath.Base(path), len(b), err)
		}
	}
}

func (v *verification) keys() []*api.Key {
	v.T.Helper()
	res, err := v.Control().Images(v.Ctx, &api.ImagesRequest{})
	if err != nil {
		v.T.Fatal(err)
	}
	return res.Keys
}

// wantWhole compares all images of the lock. It returns their digests.
func (v *verification) wantWhole() map[string]string {
	v.T.Helper()
	s := v.lock()
	current := s.GetLock().GetDigest()
	if !slices.Contains(v.promise.locks, current) {
		v.violates(whole, "the lock is %q, not one of %q", current, v.promise.locks)
	}
	i := slices.Index(v.fleet.locks[:], current)
	if i < 0 {
		return nil
	}
	if c := s.GetCounts(); c.GetReady() != int64(len(v.locked[i])) || c.GetMissing() > 0 {
		v.violates(whole, "lock %d: %v", i+1, c)
	}
	for ref, d := range v.locked[i] {
		for handler, snapshotter := range v.snapshotters {
			if err := v.wantStatus(ref, handler, v.manifests[d]); err != nil {
				v.violates(whole, "lock %d: %v", i+1, err)
			}
			v.compare(whole, ref, v.manifests[d], snapshotter)
		}
	}
	return v.locked[i]
}

func (v *verification) wantStatus(ref, handler string, want *image.Image) error {
	got, err := v.ImageStatus(v.Ctx, ref, handler)
	if err == nil && got.GetId() != want.ID {
		err = fmt.Errorf("ImageStatus %s for handler %q: %q, not %s", ref, handler, got.GetId(), want.ID)
	}
	return err
}

func (v *verification) wantPins() {
	v.T.Helper()
	for ref, allowed := range v.promise.pins {
		got := v.Pins(ref)["node"].GetRoot().GetDigest()
		if !slices.Contains(allowed, got) {
			v.violates(keptPins, "%s is pinned to %q, not to one of %q", ref, got, allowed)
		}
		v.promise.pins[ref] = []string{got}
	}
}

func (v *verification) wantPresent() {
	v.T.Helper()
	for p, img := range v.promise.images {
		if err := v.wantStatus(p.ref, p.handler, img); err != nil {
			v.violates(present, "%v", err)
		}
	}
}

// wantRecovery pulls images as pods do, and compares them. What was promised must not be fetched.
func (v *verification) wantRecovery(pulls []pulled, locked map[string]string) {
	v.T.Helper()
	later := v.Reg.Later()
	have := map[string]bool{}
	for _, img := range v.promise.images {
		v.add(have, img)
	}
	for _, p := range pulls {
		want := v.current[p.ref]
		if d := v.promise.pins[p.ref]; len(d) > 0 && d[0] != "" {
			want = v.manifests[d[0]]
		}
		if d, ok := locked[p.ref]; ok {
			want = v.manifests[d]
			v.add(have, want)
		}
		id, err := v.Pull(v.Ctx, p.ref, p.handler)
		if err != nil || id != want.ID {
			v.violates(recovered, "pulling %s for handler %q: %q, not %s (%v)", p.ref, p.handler, id, want.ID, err)
			continue
		}
		v.compare(recovered, p.ref, want, v.snapshotters[p.handler])
	}
	fetched := func(q registry.Request) bool { return have[q.Reference] && q.Method == http.MethodGet }
	for _, q := range v.Reg.Requests() {
		if later(q) && fetched(q) {
			v.violates(once, "%v", q)
		}
	}
}

func (v *verification) add(have map[string]bool, img *image.Image) {
	for _, d := range img.Blobs {
		have[d] = true
	}
}

func (m *machine) lock() *api.LockStatusResponse {
	m.T.Helper()
	s, err := m.Control().LockStatus(m.Ctx, &api.LockStatusRequest{})
	if err != nil {
		m.T.Fatal(err)
	}
	return s
}

// compare compares all snapshots of an image.
func (v *verification) compare(i invariant, ref string, img *image.Image, snapshotter string) {
	v.T.Helper()
	for n, s := range img.Snapshots {
		name := snapshotter + "/" + s.Name
		if v.compared[name] {
			continue
		}
		differences, err := v.differences(s, snapshotter)
		if err != nil {
			differences = append(differences, err.Error())
		}
		if len(differences) > 0 {
			v.violates(i, "%s on %s: snapshot %d of %d has %d differences, as %s", ref, snapshotter, n+1, len(img.Snapshots), len(differences), differences[0])
			return
		}
		v.compared[name] = true
	}
}

func (v *verification) differences(s image.Snapshot, snapshotter string) (found []string, _ error) {
	const key = "compare"
	ctx, release, err := v.Client().WithLease(testkit.NSContext(v.Ctx))
	if err != nil {
		return nil, err
	}
	defer release(ctx)
	service := v.Client().SnapshotService(snapshotter)
	mounts, err := service.View(ctx, key, s.Name)
	if err != nil && strings.Contains(err.Error(), "file exists") {
		// containerd's snapshotters rename the directory of a snapshot before they commit its record. After a cut in between,
		// the next snapshot has the same number, fails, and removes the directory.
		mounts, err = service.View(ctx, key, s.Name)
	}
	if err != nil {
		return nil, err
	}
	dir, unmount, err := v.mountView(mounts)
	if err == nil {
		found = s.Files.Compare(dir)
	}
	err = errors.Join(err, unmount())
	if removed := service.Remove(ctx, key); !errdefs.IsNotFound(removed) {
		err = errors.Join(err, removed)
	}
	return found, err
}

// mountView mounts a view of a snapshot. containerd's mount manager mounts those of EROFS, in containerd's mount namespace, so
// this does what it does: each layer, and overlayfs on all.
func (v *verification) mountView(mounts []mount.Mount) (dir string, unmount func() error, err error) {
	var mounted []string
	unmount = func() error {
		var errs []error
		for _, dir := range slices.Backward(mounted) {
			errs = append(errs, mount.UnmountAll(dir, 0))
		}
		return errors.Join(errs...)
	}
	add := func(mounts ...mount.Mount) error {
		dir = v.Path("compare", strconv.Itoa(len(mounted)))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		mounted = append(mounted, dir)
		return mount.All(mounts, dir)
	}
	if mounts[0].Type != "erofs" {
		return dir, unmount, add(mounts...)
	}
	for _, m := range mounts {
		if m.Type == "erofs" {
			err = errors.Join(err, add(m))
		}
	}
	if len(mounted) > 1 {
		err = errors.Join(err, add(mount.Mount{Type: "overlay", Source: "overlay", Options: []string{"ro", "lowerdir=" + strings.Join(mounted, ":")}}))
	}
	return dir, unmount, err
}
