package store_test

import (
	"github.com/imagepin/imagepin/pkg/imagepin/health"
	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sirupsen/logrus"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/internal/blobs"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// The targets of the test node: its own platform and another one, each in two snapshotters.
var (
	native      = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "first"}
	nativeToo   = runtimeplatform.Target{Platform: "linux/amd64", Snapshotter: "second"}
	foreign     = runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "first"}
	foreignToo  = runtimeplatform.Target{Platform: "linux/arm64", Snapshotter: "second"}
	snapshotKey = "containerd.io/gc.ref.snapshot."
)

const (
	repo = "registry.example/team/app"
	tag  = repo + ":1"
	when = 1_700_000_000
)

// records counts writes of records and can fail after a number of them. Writes before the failure stay.
type records struct {
	writes int
	allow  int // number of writes before all further writes fail, negative for no limit
	// before is called with the name of a record that is about to be written. nil does nothing.
	before func(name string)
}

var errStopped = errors.New("the process is killed")

func (r *records) write(_ context.Context, c ctdtest.Call) error {
	if c.Method == "Get" || c.Method == "List" {
		return nil
	}
	if r.before != nil {
		r.before(c.Name)
	}
	if r.allow == 0 {
		return errStopped
	}
	r.allow--
	r.writes++
	return nil
}

// env is a node with its store.
type env struct {
	*ctdtest.Node
	ctx     context.Context
	records *records
	store   *Store
	blobs   ctdtest.Blobs

	maxKeys int
}

func newEnv(t testing.TB) *env {
	t.Helper()
	n := ctdtest.New(t, "first", "second")
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	e := &env{Node: n, ctx: log.WithLogger(n.Context(t), logrus.NewEntry(quiet)), blobs: ctdtest.Blobs{}}
	e.restart()
	return e
}

// restart replaces the store with an empty one, as a restart of the process does.
func (e *env) restart() {
	runtimes, err := runtimeplatform.New("runc", []runtimeplatform.Handler{
		{Name: "runc", Snapshotter: "first"},
		{Name: "runc-second", Snapshotter: "second"},
		{Name: "arm", Snapshotter: "first", Platform: "linux/arm64"},
		{Name: "arm-second", Snapshotter: "second", Platform: "linux/arm64"},
	}, runtimeplatform.Host{Spec: platforms.MustParse("linux/amd64")})
	if err != nil {
		panic(err)
	}
	e.records = &records{allow: -1}
	e.store = New(Config{
		Records: ctdtest.Records{Store: ctdtest.Images{Store: e.Images, Before: e.records.write}}, Content: blobs.WithLocalFiles(ctdtest.Always(e.ContentDir()), e.Content), Leases: e.Leases,
		Snapshotter: e.Snapshotter, Runtimes: ctdtest.Always(runtimes),
		PinnedImages: ctdtest.Always([]string{"registry.example/pause:1"}),
		KeysARecord:  e.maxKeys,
	})
}

// image is a multi-platform image in a registry.
type image struct {
	root       ocispec.Descriptor
	amd64, arm ctdtest.Image
}

func (e *env) image(text string) image {
	i := image{amd64: e.blobs.Image("linux/amd64", text, nil), arm: e.blobs.Image("linux/arm64", text, nil)}
	i.root = e.blobs.Index(i.amd64.Manifest, i.arm.Manifest)
	return i
}

func (i image) of(t runtimeplatform.Target) ctdtest.Image {
	if t.Platform == native.Platform {
		return i.amd64
	}
	return i.arm
}

// entries returns the entries that a pull of ref records: one for the digest and one for the reference.
func entries(ref string, i image, t runtimeplatform.Target, at int) []imagepin.Entry {
	named, err := reference.ParseNamed(ref)
	if err != nil {
		panic(err)
	}
	img, recordTarget := i.of(t), i.root
	if t.Platform != native.Platform {
		recordTarget = img.Manifest
		recordTarget.Platform = nil
	}
	byDigest := func(d digest.Digest) string { return reference.TrimNamed(named).String() + "@" + d.String() }
	one := imagepin.Entry{
		Key:  imagepin.Key{Ref: byDigest(i.root.Digest), Target: t},
		Root: i.root, Manifest: img.Manifest.Digest, ImageID: img.Config.Digest, ChainID: img.ChainID,
		ReadyAt: time.Unix(when+int64(at), 0).UTC(), Source: imagepin.SourcePull,
		Record: byDigest(recordTarget.Digest), RecordTarget: recordTarget,
	}
	all := []imagepin.Entry{one}
	if ref != one.Ref {
		one.Ref = ref
		all = append(all, one)
	}
	return all
}

// place writes an image's content and snapshot as a pull does.
func (e *env) place(ctx context.Context, t testing.TB, i image, target runtimeplatform.Target) {
	t.Helper()
	img := i.of(target)
	e.Write(ctx, t, e.blobs)
	if target.Platform == native.Platform && i.root.Digest != img.Manifest.Digest {
		e.Keep(ctx, t, img, &i.root)
	} else {
		e.Keep(ctx, t, img, nil)
	}
	e.Unpack(ctx, t, img, target.Snapshotter)
}

// pull makes an image ready for a target and runs a garbage collection.
func (e *env) pull(t *testing.T, ref string, i image, target runtimeplatform.Target, at int, proof string) Change {
	t.Helper()
	ctx, done := e.Lease(t)
	e.place(ctx, t, i, target)
	change, err := e.store.Put(e.ctx, proof, entries(ref, i, target, at)...)
	if err != nil {
		t.Fatal(err)
	}
	done()
	e.Collect(t)
	return change
}

// newChecker returns a checker for the keys of a store.
func newChecker(s *Store) *health.Checker {
	c := s.Configuration()
	return health.New(health.Config{
		Images: s, Content: c.Content, Leases: c.Leases, Snapshotter: c.Snapshotter, Runtimes: c.Runtimes,
	})
}

// startResult is the result of a start.
type startResult struct {
	Lost        []health.Loss
	Unaccounted []images.Image
	Have        *health.Inventory
}

func (s *startResult) entries() []imagepin.Entry {
	var all []imagepin.Entry
	for _, l := range s.Lost {
		all = append(all, l.Entry)
	}
	return all
}

// loadFor builds the index as a start does.
func (e *env) loadFor(ctx context.Context) (*startResult, error) { return load(ctx, e.store) }

func load(ctx context.Context, s *Store) (*startResult, error) {
	found, c := &startResult{}, newChecker(s)
	loaded, err := s.Load(ctx, func(ctx context.Context) (_ func(imagepin.Entry) bool, err error) {
		if found.Have, err = c.Inventory(ctx); err != nil {
			return nil, err
		}
		return func(e imagepin.Entry) bool {
			_, lost := c.Lost(e, found.Have)
			return !lost
		}, nil
	})
	if err != nil {
		return nil, err
	}
	for _, e := range loaded.Lost {
		loss, _ := c.Lost(e, found.Have)
		found.Lost = append(found.Lost, loss)
	}
	ofLost := NeededBy(loaded.Lost)
	for _, img := range loaded.Records {
		if !ofLost(img) && !s.Accounted(img) {
			found.Unaccounted = append(found.Unaccounted, img)
		}
	}
	return found, nil
}

func (e *env) load(t *testing.T) []string {
	t.Helper()
	loaded, err := e.loadFor(e.ctx)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, img := range loaded.Unaccounted {
		names = append(names, img.Name)
	}
	slices.Sort(names)
	return names
}

// removeSnapshot removes the snapshot of an image as another tool does.
func (e *env) removeSnapshot(t *testing.T, i image, target runtimeplatform.Target) {
	t.Helper()
	if err := e.Snapshotter(target.Snapshotter).Remove(e.ctx, i.of(target).ChainID.String()); err != nil {
		t.Fatal(err)
	}
}

func (e *env) remove(t *testing.T, keys ...imagepin.Key) {
	t.Helper()
	if _, err := e.store.Remove(e.ctx, keys...); err != nil {
		t.Fatal(err)
	}
	if err := e.store.Collect(e.ctx); err != nil {
		t.Fatal(err)
	}
}

// label sets a label as another tool does.
func (e *env) label(t *testing.T, record, name, value string) {
	t.Helper()
	if _, err := e.Images.Update(e.ctx, images.Image{Name: record, Labels: map[string]string{name: value}}, "labels."+name); err != nil {
		t.Fatal(err)
	}
}

func keysOf(es []imagepin.Entry) []imagepin.Key {
	var keys []imagepin.Key
	for _, e := range es {
		keys = append(keys, e.Key)
	}
	return keys
}

// keys returns all keys of the store as text.
func (e *env) keys() []string {
	var all []string
	for _, img := range e.store.Images() {
		for _, entry := range img.Entries {
			all = append(all, entry.Key.String())
		}
	}
	slices.Sort(all)
	return all
}

func texts(keys ...imagepin.Key) []string {
	var all []string
	for _, k := range keys {
		all = append(all, k.String())
	}
	slices.Sort(all)
	return all
}

// state returns the targets and labels of the records, without times.
func (e *env) state(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	for name, img := range e.Records(t) {
		var labels []string
		for k, v := range img.Labels {
			if strings.HasPrefix(k, imagepin.ProofLabelPrefix) {
				v = "time"
			}
			labels = append(labels, k+"="+v)
		}
		slices.Sort(labels)
		all[name] = fmt.Sprintf("%s %s", img.Target.Digest, labels)
	}
	return all
}

// wantRecords checks the names and targets of all records.
func (e *env) wantRecords(t *testing.T, want map[string]digest.Digest) {
	t.Helper()
	got := make(map[string]digest.Digest)
	for name, img := range e.Records(t) {
		got[name] = img.Target.Digest
	}
	if !maps.Equal(got, want) {
		t.Errorf("got records:\n%s\nwant:\n%s", lines(got), lines(want))
	}
}

func lines[V any](m map[string]V) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(&b, "  %s -> %v\n", k, m[k])
	}
	return b.String()
}

// keyLabels returns the keys that a record carries.
func (e *env) keyLabels(t *testing.T, record string) []string {
	t.Helper()
	var found []string
	for label, value := range e.Records(t)[record].Labels {
		if !imagepin.IsKeyLabel(label) {
			continue
		}
		entry, err := imagepin.DecodeKeyLabel(label, value)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, entry.Key.String())
	}
	slices.Sort(found)
	return found
}

func wantEqual[T comparable](t *testing.T, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// wantSound checks that the content of every key exists and survives a garbage collection.
func (e *env) wantSound(t *testing.T) {
	t.Helper()
	e.Collect(t)
	for _, img := range e.store.Images() {
		for _, k := range img.Entries {
			switch {
			case !e.HasBlob(t, k.Manifest):
				t.Errorf("%s: manifest is missing", k.Key)
			case !e.HasBlob(t, k.ImageID):
				t.Errorf("%s: configuration is missing", k.Key)
			case !e.HasSnapshot(t, k.Target.Snapshotter, k.ChainID):
				t.Errorf("%s: snapshot is missing", k.Key)
			}
		}
	}
}
