package store_test

import (
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

// model is what a store should have: which root each key means.
type model map[imagepin.Key]digest.Digest

// history is a random sequence of what can happen to a store.
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

// Any sequence of pulls, removals, starts, crashes between two writes and
// changes by other tools leaves keys that are ready, and those that the model
// has; and in the end all can be removed, and nothing is left.
//
// The histories are the same each time, and those that have failed once are
// among them. IMAGEPIN_MODEL_HISTORIES adds so many new ones (make soak), and
// IMAGEPIN_MODEL_SEED repeats one.
func TestAnySequenceKeepsTheInvariants(t *testing.T) {
	const histories, length = 16, 20
	seeds := []uint64{1795268755208666484, 1795268786735584731, 1795269017991299814}
	for seed := range uint64(histories) {
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
			h := &history{env: newEnv(t), Rand: rand.New(rand.NewPCG(seed, 0)), t: t, model: model{}}
			h.keysARecord = int(seed % 4)
			h.restart()
			for _, text := range []string{"a", "b", "c"} {
				h.images = append(h.images, h.image(text))
			}
			for range length {
				what := h.step()
				h.sound(t)
				h.compare(what)
				if t.Failed() {
					t.Fatalf("after %s; IMAGEPIN_MODEL_SEED=%d", what, seed)
				}
			}
			h.clear()
			h.wantEmpty(t)
		})
	}
}

// fromEnvironment is a number that the environment may have.
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
		h.pulled(-1)
		return "a pull"
	case 3:
		h.removed(-1)
		return "a removal"
	case 4:
		h.start()
		return "a start"
	case 5:
		h.pulled(h.IntN(4))
		return "a pull that was killed"
	case 6:
		h.removed(h.IntN(4))
		return "a removal that was killed"
	default:
		return "the removal of record " + h.taken()
	}
}

// pulled makes an image ready; after so many writes the process dies.
func (h *history) pulled(allow int) {
	ref, img, target := pick(h.Rand, modelRefs), pick(h.Rand, h.images), pick(h.Rand, modelTargets)
	ctx, done := h.Lease(h.t)
	h.place(ctx, h.t, img, target)
	es := entries(ref, img, target, h.now)
	h.records.allow = allow
	_, err := h.store.Put(h.ctx, "", es...)
	done()
	h.finish(err, func(m model) {
		for _, e := range es {
			m[e.Key] = e.Root.Digest
		}
	})
}

// removed takes some keys away; after so many writes the process dies.
func (h *history) removed(allow int) {
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

// sorted makes a random choice of keys the same for the same seed.
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

// finish takes the change over into the model. Where the process has died on
// the way, each key is as it was before or as it should have been after.
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
			h.t.Errorf("after a crash %s means %s: neither %s nor %s", k, d, before[k], h.model[k])
		}
	}
	for k, d := range before {
		if now[k] == "" && h.model[k] == d {
			h.t.Errorf("after a crash %s is lost, which nobody removed", k)
		}
	}
	h.model = now
}

// taken removes a record as another tool does, and lets the store know.
func (h *history) taken() string {
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
			h.t.Errorf("%s went with record %s, which it does not depend on", k, name)
		}
	}
	for k := range now {
		if _, ok := h.model[k]; !ok {
			h.t.Errorf("%s came when record %s went", k, name)
		}
	}
	h.model = now
	return name
}

// start is what a start does, without adoption.
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
	// What adoption would look at: records that were written before a key's. A
	// tag that has moved ahead of its keys stays, as it does where the adoption
	// of what it means now fails.
	for _, img := range loaded.Unexplained {
		if len(h.store.ByRef(img.Name)) > 0 {
			continue
		}
		if err := h.Images.Delete(h.ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
			h.t.Fatal(err)
		}
	}
}

// known is what the store has.
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
			h.t.Errorf("after %s %s means %q, not %q", what, k, now[k], d)
		}
	}
	for k := range now {
		if h.model[k] == "" {
			h.t.Errorf("after %s there is %s", what, k)
		}
	}
	report, err := checkerOf(h.store).Check(h.ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, f := range report.Findings {
		h.t.Errorf("after %s: %s: %s", what, f.Subject, f.Problem)
	}
}

// clear removes everything.
func (h *history) clear() {
	h.t.Helper()
	h.start()
	if _, err := h.store.Remove(h.ctx, h.sorted()...); err != nil {
		h.t.Fatal(err)
	}
	h.model = model{}
	h.start()
}
