package store_test

import (
	"strings"

	. "github.com/imagepin/imagepin/pkg/imagepin/store"

	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/runtimeplatform"
)

// model is the expected state of a store: the root digest of each key.
type model map[imagepin.Key]digest.Digest

// history is a random sequence of operations on a store.
type history struct {
	*env
	*rand.Rand
	t      *testing.T
	images []image
	model  model
	now    int
}

var (
	modelTargets = []runtimeplatform.Target{native, nativeToo, foreign, foreignToo}
	modelRefs    = []string{tag, repo + ":2", "registry.example/other:1"}
)

// TestAnySequenceKeepsTheInvariants runs sequences of pulls, removals, starts, crashes between two writes, and changes
// by other tools. After each step all keys are ready and are those of the model. In the end all keys can be removed,
// and nothing is left.
//
// The seeds are fixed and include those that failed before. IMAGEPIN_MODEL_HISTORIES adds that many random seeds (make
// soak), and IMAGEPIN_MODEL_SEED runs a single seed.
func TestAnySequenceKeepsTheInvariants(t *testing.T) {
	t.Parallel()
	histories, length := uint64(16), 20
	if testing.Short() {
		histories = 8
	}
	seeds := []uint64{1795268755208666484, 1795268786735584731, 1795269017991299814}
	for seed := range histories {
		seeds = append(seeds, seed)
	}
	for range fromEnvironment(t, "IMAGEPIN_MODEL_HISTORIES") {
		seeds = append(seeds, rand.Uint64())
	}
	if seed := fromEnvironment(t, "IMAGEPIN_MODEL_SEED"); seed != 0 {
		seeds = []uint64{seed}
	}
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			h := &history{env: newEnv(t), Rand: rand.New(rand.NewPCG(seed, 0)), t: t, model: model{}}
			h.maxKeys = int(seed % 4)
			h.restart()
			for _, text := range []string{"a", "b", "c"} {
				h.images = append(h.images, h.image(text))
			}
			for range length {
				what := h.step()
				h.wantSound(t)
				h.compare(what)
				if t.Failed() {
					t.Fatalf("after %s; IMAGEPIN_MODEL_SEED=%d", what, seed)
				}
			}
			h.clear()
			h.WantEmpty(t)
		})
	}
}

// fromEnvironment returns a number from an environment variable, or 0 if it is not set.
func fromEnvironment(t *testing.T, name string) uint64 {
	s := os.Getenv(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

func (h *history) step() string {
	h.now++
	switch h.IntN(8) {
	case 0, 1, 2:
		h.pullRandom(-1)
		return "a pull"
	case 3:
		h.removeRandom(-1)
		return "a removal"
	case 4:
		h.start()
		return "a start"
	case 5:
		h.pullRandom(h.IntN(4))
		return "a pull that was killed"
	case 6:
		h.removeRandom(h.IntN(4))
		return "a removal that was killed"
	default:
		return "the removal of record " + h.removeRandomRecord()
	}
}

// pullRandom makes an image ready. The process is killed after allow writes, or never if allow is negative.
func (h *history) pullRandom(allow int) {
	ref, img, target := pick(h.Rand, modelRefs), pick(h.Rand, h.images), pick(h.Rand, modelTargets)
	ctx, done := h.Lease(h.t)
	h.place(ctx, h.t, img, target)
	es := entries(ref, img, target, h.now)
	h.records.allow = allow
	_, err := h.store.Put(h.ctx, "", es...)
	done()
	h.finish(err, func(m model) {
		for _, e := range es {
			if old := m[e.Key]; old != "" && old != e.Root.Digest { // the image of the tag until now stays under its digest
				repository, _, _ := strings.Cut(es[0].Ref, "@")
				m[imagepin.Key{Ref: repository + "@" + old.String(), Target: target}] = old
			}
			m[e.Key] = e.Root.Digest
		}
	})
}

// removeRandom removes some keys. The process is killed after allow writes, or never if allow is negative.
func (h *history) removeRandom(allow int) {
	keys := h.keysAtRandom()
	h.records.allow = allow
	_, err := h.store.Remove(h.ctx, keys...)
	h.finish(err, func(m model) {
		for _, k := range keys {
			delete(m, k)
		}
	})
}

func (h *history) keysAtRandom() []imagepin.Key {
	var keys []imagepin.Key
	for _, k := range h.sorted() {
		if h.IntN(3) == 0 {
			keys = append(keys, k)
		}
	}
	return keys
}

// sorted returns the keys in order, so that a seed always selects the same keys.
func (h *history) sorted() []imagepin.Key {
	var keys []imagepin.Key
	for k := range h.model {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b imagepin.Key) int {
		return Compare(imagepin.Entry{Key: a}, imagepin.Entry{Key: b})
	})
	return keys
}

// finish applies a change to the model. If the process was killed meanwhile, each key has its state before or after the
// change.
func (h *history) finish(err error, change func(model)) {
	h.t.Helper()
	h.records.allow = -1
	before := model{}
	for k, d := range h.model {
		before[k] = d
	}
	change(h.model)
	if err == nil {
		return
	}
	if !errors.Is(err, errStopped) {
		h.t.Fatal(err)
	}
	h.start()
	now := h.known()
	for k, d := range now {
		if d != before[k] && d != h.model[k] {
			h.t.Errorf("after a crash: %s: got digest %s, want %s or %s", k, d, before[k], h.model[k])
		}
	}
	for k, d := range before {
		if now[k] == "" && h.model[k] == d {
			h.t.Errorf("after a crash: %s is missing but was not removed", k)
		}
	}
	h.model = now
}

// removeRandomRecord deletes a record as another tool does and syncs the store.
func (h *history) removeRandomRecord() string {
	var names []string
	for name := range h.Records(h.t) {
		if _, err := digest.Parse(name); err != nil {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	name := pick(h.Rand, names)
	may := make(map[imagepin.Key]bool)
	for _, e := range slices.Concat(h.store.ByRecord(name), h.store.ByRef(name)) {
		may[e.Key] = true
	}
	if err := h.Images.Delete(h.ctx, name); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.store.Sync(h.ctx, name); err != nil {
		h.t.Fatal(err)
	}
	now := h.known()
	for k, d := range h.model {
		if now[k] != d && !may[k] {
			h.t.Errorf("%s is missing after the removal of record %s, which it does not depend on", k, name)
		}
	}
	for k := range now {
		if _, ok := h.model[k]; !ok {
			h.t.Errorf("%s is new after the removal of record %s", k, name)
		}
	}
	h.model = now
	return name
}

// start simulates a start without adoption.
func (h *history) start() {
	h.t.Helper()
	h.restart()
	loaded, err := h.loadFor(h.ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, l := range loaded.Lost {
		if err := h.store.Drop(h.ctx, l.Entry); err != nil {
			h.t.Fatal(err)
		}
	}
	if err := h.store.ReleaseOrphans(h.ctx, loaded.Have.Unpacked(), loaded.entries()...); err != nil {
		h.t.Fatal(err)
	}
	// Delete the records that adoption would handle, which were written before those of a key. No tool but imagepin has
	// moved a tag, so a tag with keys has the digest of one of them.
	for _, img := range loaded.Unaccounted {
		if slices.ContainsFunc(h.store.ByRef(img.Name), func(e imagepin.Entry) bool { return e.Target.Platform == native.Platform }) {
			h.t.Errorf("after a start: %s has target %s, but no key has", img.Name, img.Target.Digest)
		}
		if err := h.Images.Delete(h.ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
			h.t.Fatal(err)
		}
	}
}

// known returns the keys of the store.
func (h *history) known() model {
	m := model{}
	for _, img := range h.store.Images() {
		for _, e := range img.Entries {
			m[e.Key] = e.Root.Digest
		}
	}
	return m
}

func (h *history) compare(what string) {
	h.t.Helper()
	now := h.known()
	for k, d := range h.model {
		if now[k] != d {
			h.t.Errorf("after %s: %s: got digest %q, want %q", what, k, now[k], d)
		}
	}
	for k := range now {
		if h.model[k] == "" {
			h.t.Errorf("after %s: unexpected key %s", what, k)
		}
	}
	report, err := newChecker(h.store).Check(h.ctx, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range report.Findings {
		h.t.Errorf("after %s: %s: %s", what, f.Subject, f.Problem)
	}
}

// clear removes all keys.
func (h *history) clear() {
	h.t.Helper()
	h.start()
	if _, err := h.store.Remove(h.ctx, h.sorted()...); err != nil {
		h.t.Fatal(err)
	}
	h.model = model{}
	h.start()
}
