package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

const (
	goodRef = "registry.example/good:1"
	longRef = "registry.example/long:1"
	badRef  = "registry.example/bad:1"
)

// TestAdoptionSkipsUnreadableImages checks that an unreadable image does not block the adoption of others. An image
// whose user is too long for a label is adopted, and its user is known after a restart.
func TestAdoptionSkipsUnreadableImages(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	s := store.New(storeConfig(n, runtimes))
	blobs := ctdtest.Blobs{}
	good := blobs.Image("linux/amd64", "good", nil)
	variant := func(config any) ocispec.Descriptor {
		return blobs.AddJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
			Config: blobs.AddJSON(ocispec.MediaTypeImageConfig, config),
		})
	}
	user := strings.Repeat("u", 4096)
	long := variant(map[string]any{"architecture": "amd64", "os": "linux", "config": map[string]any{"User": user}})
	bad := variant(map[string]any{"architecture": "amd64", "os": "linux", "config": "none"})
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, good, "first")
	for name, target := range map[string]ocispec.Descriptor{goodRef: good.Manifest, longRef: long, badRef: bad} {
		if _, err := n.Images.Create(ctx, images.Image{Name: name, Target: target}); err != nil {
			t.Fatal(err)
		}
	}
	r := reconcilerOf(n, storeConfig(n, runtimes), s)
	loaded, err := r.load(ctx)
	if err != nil || len(loaded.unkeyed) != 3 {
		t.Fatalf("got load result %v, %v, want 3 unkeyed records", loaded, err)
	}
	if err := r.adopter.adoptAll(ctx, loaded.unkeyed, loaded.have); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if len(s.ByRef(goodRef)) != 1 || len(s.ByRef(badRef)) != 0 {
			t.Errorf("got images %+v, want good and not bad", s.Images())
		}
		if got := s.ByRef(longRef); len(got) != 1 || got[0].User != user {
			t.Errorf("image with a long user: got %+v", got)
		}
		if _, err := r.load(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAdoptionOfOthers checks that an image that cannot be recorded does not keep the others from being adopted, which are
// recorded together, and that the start fails if none can be.
func TestAdoptionOfOthers(t *testing.T) {
	runtimes := ctdtest.Runtimes(t, "first")
	for _, refused := range []string{"", "registry.example/bad"} {
		n := ctdtest.New(t, "first")
		blobs := ctdtest.Blobs{}
		ctx, done := n.Lease(t)
		names := []string{badRef, goodRef, longRef}
		for _, name := range names {
			img := blobs.Image("linux/amd64", name, nil)
			n.Write(ctx, t, blobs)
			n.Unpack(ctx, t, img, "first")
			if _, err := n.Images.Create(ctx, images.Image{Name: name, Target: img.Manifest}); err != nil {
				t.Fatal(err)
			}
		}
		c := storeConfig(n, runtimes)
		c.Records = ctdtest.Records{Store: ctdtest.Images{Store: n.Images, Before: func(_ context.Context, c ctdtest.Call) error {
			if (c.Method == "Create" || c.Method == "Update") && strings.HasPrefix(c.Name, refused) {
				return errors.New("refused")
			}
			return nil
		}}}
		s := store.New(c)
		r := reconcilerOf(n, c, s)
		loaded, err := r.load(ctx)
		if err != nil || len(loaded.unkeyed) != len(names) {
			t.Fatalf("got load result %v, %v", loaded, err)
		}
		if err := r.adopter.adoptAll(ctx, loaded.unkeyed, loaded.have); (err != nil) != (refused == "") {
			t.Errorf("refused %q: %v", refused, err)
		}
		for _, name := range names {
			if adopted := len(s.ByRef(name)) == 1; adopted == strings.HasPrefix(name, refused) {
				t.Errorf("refused %q: %s is adopted: %t", refused, name, adopted)
			}
		}
		done()
	}
}

// storeConfig returns the configuration of a store for a node.
func storeConfig(n *ctdtest.Node, runtimes *runtimeplatform.Set) store.Config {
	return store.Config{
		Records: ctdtest.Records{Store: n.Images}, Content: n.Content, Leases: n.Leases, Snapshotter: n.Snapshotter, Runtimes: ctdtest.Always(runtimes),
	}
}

// reconcilerOf returns a reconciler for the images of a store, without a puller.
func reconcilerOf(n *ctdtest.Node, c store.Config, s *store.Store) *Reconciler {
	r := New(Config{
		Store: s, Records: c.Records, Content: n.Content, Leases: n.Leases, Events: n.Events, Locks: new(pull.Locks), Runtimes: c.Runtimes, Namespace: ctdtest.Namespace,
		Checker: health.New(health.Config{
			Images: s, Content: c.Content, Leases: c.Leases, Snapshotter: c.Snapshotter, Runtimes: c.Runtimes,
		}),
	})

	return r
}

// TestCheckReportsUnadoptedImages checks that a check reports why an image of another tool has no key, and that a
// repair ignores these findings.
func TestCheckReportsUnadoptedImages(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	s := store.New(storeConfig(n, runtimes))
	blobs := ctdtest.Blobs{}
	good := blobs.Image("linux/amd64", "good", nil)
	packed := blobs.Image("linux/amd64", "packed", nil)
	garbage := blobs.Add(ocispec.MediaTypeImageManifest, []byte("garbage"))
	foreign := blobs.Index(blobs.Image("linux/riscv64", "app", nil).Manifest)
	other := "registry.example/other@" + packed.Manifest.Digest.String()
	ctx, done := n.Lease(t)
	defer done()
	n.Write(ctx, t, blobs)
	n.Unpack(ctx, t, good, "first")
	reasons := map[string]string{
		goodRef:                          "",
		good.Config.Digest.String():      "",
		badRef:                           "it cannot be read: ",
		"busybox":                        "its name is not a normalized reference; use docker.io/library/busybox:latest",
		"Not/A/Reference":                "its name is not a reference: ",
		other:                            "it targets " + garbage.Digest.String() + ", not the digest in its name",
		"registry.example/packed:1":      "it is not unpacked in first",
		"registry.example/riscv:1":       "the node has no content for the platforms of its runtime handlers",
		"registry.example/gone:1":        "the node has no content for the platforms of its runtime handlers",
		"registry.example/newer-label:1": "",
	}
	targets := map[string]ocispec.Descriptor{
		badRef: garbage, other: garbage, "registry.example/packed:1": packed.Manifest,
		"registry.example/riscv:1": foreign,
		"registry.example/gone:1":  {MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("gone"), Size: 4},
	}
	for name := range reasons {
		target, ok := targets[name]
		if !ok {
			target = good.Manifest
		}
		img := images.Image{Name: name, Target: target}
		if strings.Contains(name, "newer") {
			img.Labels = map[string]string{imagepin.KeyLabelPrefix + "0123456789abcdef": `{"v":99}`}
		}
		if _, err := n.Images.Create(ctx, img); err != nil {
			t.Fatal(err)
		}
	}
	r := reconcilerOf(n, storeConfig(n, runtimes), s)
	report, err := r.Check(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprint(n.Records(t))
	got := make(map[string]string)
	for _, f := range report.Findings {
		if repair, err := r.Repair(ctx, f); repair != Ignored || err != nil {
			t.Errorf("%s: got repair %q, %v, want %q", f.Subject, repair, err, Ignored)
		}
		if adopted := f.Kind != health.NotAdopted; adopted != strings.Contains(f.Subject, "newer") {
			t.Errorf("%s: got kind %v", f.Subject, f.Kind)
		}
		got[f.Subject] = f.Problem
	}
	if after := fmt.Sprint(n.Records(t)); after != before {
		t.Errorf("got records %s, want %s", after, before)
	}
	reasons["registry.example/newer-label:1"] = "version 99 is newer than 1"
	for name, why := range reasons {
		if problem, found := got[name]; found != (why != "") || !strings.Contains(problem, why) {
			t.Errorf("%s: got problem %q, want %q", name, problem, why)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("unexpected findings: %v", got)
	}
}

// TestRecordCreatedAgain creates the record of a reference without that of its image ID, as containerd's CRI does after
// it removed both. The image is listed if the record is managed, and can be removed.
func TestRecordCreatedAgain(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	s := store.New(storeConfig(n, runtimes))
	r := reconcilerOf(n, storeConfig(n, runtimes), s)
	ctx, done := n.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	n.Write(ctx, t, blobs)
	id := img.Config.Digest
	const name = "not a reference"
	for labels, want := range map[string]bool{"": false, "managed": true} {
		record := images.Image{Name: name, Target: img.Manifest, Labels: map[string]string{"io.cri-containerd.image": labels}}
		if _, err := n.Images.Create(ctx, record); err != nil {
			t.Fatal(err)
		}
		for _, event := range []string{name, id.String()} {
			if err := r.syncRecord(ctx, event); err != nil {
				t.Fatal(err)
			}
		}
		if _, listed := s.FindUntagged(id.String()); listed != want {
			t.Errorf("label %q: got listed %v, want %v", labels, listed, want)
		}
		removed, err := s.RemoveRecords(ctx, id, name)
		if left := n.Records(t); err != nil || !removed || len(left) > 0 {
			t.Errorf("label %q: removed %v, %v, remaining records %v", labels, removed, err, left)
		}
	}
}

// TestIDRecordRemovedLater removes the record of an image ID that a record without a key needs. It is created again while
// that record exists.
func TestIDRecordRemovedLater(t *testing.T) {
	n := ctdtest.New(t, "first")
	runtimes := ctdtest.Runtimes(t, "first")
	s := store.New(storeConfig(n, runtimes))
	r := reconcilerOf(n, storeConfig(n, runtimes), s)
	ctx, done := n.Lease(t)
	defer done()
	blobs := ctdtest.Blobs{}
	img := blobs.Image("linux/amd64", "app", nil)
	n.Write(ctx, t, blobs)
	id := img.Config.Digest.String()
	const name = "not a reference"
	sync := func(event string) {
		t.Helper()
		if err := r.syncRecord(ctx, event); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		t.Helper()
		if err := n.Images.Delete(ctx, name); err != nil {
			t.Fatal(err)
		}
		sync(name)
	}
	if _, err := n.Images.Create(ctx, images.Image{Name: name, Target: img.Manifest, Labels: map[string]string{"io.cri-containerd.image": "managed"}}); err != nil {
		t.Fatal(err)
	}
	sync(name)
	for range 2 {
		remove(id)
		if _, ok := n.Records(t)[id]; !ok {
			t.Error("the record of the image ID was not created again")
		}
		sync(id)
		if _, listed := s.FindUntagged(id); !listed {
			t.Error("the image is not listed")
		}
	}
	remove(name)
	remove(id)
	if left := n.Records(t); len(left) > 0 {
		t.Errorf("got records %v, want none", left)
	}
}

// TestLongNameIsNotAdopted checks that a record whose name is too long for a key is not adopted, and why.
func TestLongNameIsNotAdopted(t *testing.T) {
	name := strings.Repeat("a.", 16<<10) + "example/app:v1"
	if _, err := adoptable(images.Image{Name: name}); err == nil || err.Error() != "its name has 32782 bytes, a reference has at most 1024" {
		t.Errorf("got %.300v", err)
	}
}
