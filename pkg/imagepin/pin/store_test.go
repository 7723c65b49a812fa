package pin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/imagepin/imagepin/internal/ctdtest"
	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/policy"
)

const ref = "registry.example/team/app:1"

// env is a Store on a real metadata database. It records notifications and counts writes.
type env struct {
	*Store
	node     *ctdtest.Node
	ctx      context.Context
	mu       sync.Mutex
	notified []string
	wrote    int
}

// count counts the writes of records.
func (e *env) count(_ context.Context, c ctdtest.Call) error {
	if c.Method == "Create" || c.Method == "Update" {
		e.mu.Lock()
		e.wrote++
		e.mu.Unlock()
	}
	return nil
}

func newEnv(t *testing.T, maxPerNamespace int) *env {
	t.Helper()
	e := &env{node: ctdtest.New(t, "first")}
	e.ctx = e.node.Context(t)
	e.Store = New(Config{
		Images: ctdtest.Images{Store: e.node.Images, Before: e.count}, Namespaces: ctdtest.Namespaces{DB: e.node.DB}, MaxPerNamespace: ctdtest.Always(maxPerNamespace),
		Notify: func(_ context.Context, ev Event, p Pin, previous digest.Digest) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.notified = append(e.notified, string(ev)+" "+p.Ref)
		},
	})
	e.reload(t)
	return e
}

// reload loads the pins into an empty store, as a restart does.
func (e *env) reload(t *testing.T) {
	t.Helper()
	e.Store.table = newTable()
	if err := e.Load(e.ctx); err != nil {
		t.Fatal(err)
	}
}

func root(text string) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString(text), Size: int64(len(text))}
}

func must(t *testing.T) func(Pin, error) Pin {
	return func(p Pin, err error) Pin {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

var scopes = []policy.Scope{policy.NodeScope, policy.WorkloadScope("shop", "pod-template-hash", "5f4d")}

// TestScopeTooLongForLabel uses a pod label that is longer than Kubernetes allows.
func TestScopeTooLongForLabel(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.WorkloadScope("shop", "pod-template-hash", strings.Repeat("x", 64<<10)), Ref: ref}
	_, err := e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "workload/shop/pod-template-hash=x") || len(err.Error()) > 1000 {
		t.Errorf("pin with a scope of 64 KiB: got %.2000v, want a short InvalidArgument error", err)
	}
	if all := e.List(); len(all) != 0 {
		t.Errorf("got %d pins, want 0", len(all))
	}
}

// TestRoundTrip writes and reads every field of a pin.
func TestRoundTrip(t *testing.T) {
	e := newEnv(t, 0)
	for _, scope := range scopes {
		id := ID{Scope: scope, Ref: ref}
		must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false))
		must(t)(e.Move(e.ctx, id, root("two"), ByOperator, true))
		if err := e.RecordDrift(e.ctx, id, root("three").Digest); err != nil {
			t.Fatal(err)
		}
		before, _ := e.Get(id)
		e.reload(t)
		after, ok := e.Get(id)
		if !ok {
			t.Fatalf("%s is missing", id)
		}
		wantEqual(t, "root", after.Root, before.Root)
		wantEqual(t, "made", after.MadeAt.Unix(), before.MadeAt.Unix())
		wantEqual(t, "by", after.By, ByOperator)
		wantEqual(t, "used", after.UsedAt.Format(time.DateOnly), before.UsedAt.UTC().Format(time.DateOnly))
		wantEqual(t, "retain", after.Retain, true)
		wantEqual(t, "drift", after.Drift.Digest, root("three").Digest)
		wantEqual(t, "history", after.History[0].Digest, root("one").Digest)
		wantEqual(t, "history", len(after.History), 1)
	}
	wantEqual(t, "pins", len(e.Scopes(ref)), len(scopes))
	wantEqual(t, "pins of another reference", len(e.Scopes("registry.example/other:1")), 0)
	wantEqual(t, "pinned", e.Pinned(ref), true)
	wantEqual(t, "retains", e.Retains(root("two").Digest), true)
	wantEqual(t, "retains the old digest", e.Retains(root("one").Digest), false)
	for _, scope := range scopes {
		must(t)(e.Remove(e.ctx, ID{Scope: scope, Ref: ref}))
	}
	wantEqual(t, "pinned", e.Pinned(ref), false)
	if _, err := e.Remove(e.ctx, ID{Scope: policy.NodeScope, Ref: ref}); !errdefs.IsNotFound(err) {
		t.Errorf("removing a missing pin: got %v, want a NotFound error", err)
	}
	e.reload(t)
	wantEqual(t, "pins", len(e.List()), 0)
}

// TestPinsOutliveGarbageCollection checks that pins stay although their content does not exist.
func TestPinsOutliveGarbageCollection(t *testing.T) {
	e := newEnv(t, 0)
	must(t)(e.MakeForNamespace(e.ctx, "", ID{Scope: policy.NodeScope, Ref: ref}, root("one"), ByUse, false))
	e.node.Collect(t)
	e.reload(t)
	wantEqual(t, "pins", len(e.List()), 1)
	if len(e.node.Records(t)) != 0 {
		t.Error("a pin is a record in the CRI's namespace")
	}
}

// TestDamagedRecords checks that unreadable records are ignored, and records with damaged optional labels are read. A
// new pin replaces a damaged record, but not a record of a newer release.
func TestDamagedRecords(t *testing.T) {
	id := ID{Scope: policy.NodeScope, Ref: ref}
	for _, test := range []struct {
		label, value string
		class        func(error) bool // nil if the pin is readable
	}{
		{labelVersion, "", errdefs.IsInvalidArgument},
		{labelVersion, "one", errdefs.IsInvalidArgument},
		{labelVersion, "2", errdefs.IsNotImplemented},
		{labelScope, "cluster", errdefs.IsInvalidArgument},
		{labelRef, "UPPER", errdefs.IsInvalidArgument},
		{labelRef, "registry.example/other:1", errdefs.IsInvalidArgument},
		{labelMade, "yesterday", nil},
		{labelUsed, "never", nil},
		{labelDrift, "{", nil},
		{labelDrift, `{"digest":"sha256:short"}`, nil},
		{labelHistory, "[{]", nil},
		{labelRetain, "perhaps", nil},
	} {
		t.Run(test.label+"="+test.value, func(t *testing.T) {
			e := newEnv(t, 0)
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, true))
			ctx := namespaced(e.ctx)
			damaged := images.Image{Name: id.String(), Labels: map[string]string{test.label: test.value}}
			if _, err := e.node.Images.Update(ctx, damaged, "labels."+test.label); err != nil {
				t.Fatal(err)
			}
			e.reload(t)
			p, ok := e.Get(id)
			wantEqual(t, "readable", ok, test.class == nil)
			img, err := e.node.Images.Get(ctx, id.String())
			if err != nil {
				t.Fatal(err)
			}
			if test.class == nil {
				wantEqual(t, "root", p.Root.Digest, root("one").Digest)
				if p.MadeAt.IsZero() || p.UsedAt.IsZero() || p.Drift != nil || len(p.History) > 0 {
					t.Errorf("unexpected pin %+v", p)
				}
				return
			}
			if _, err := read(img); !test.class(err) {
				t.Errorf("error of another class: %v", err)
			}
			wantEqual(t, "ignored record", img.Target.Digest, root("one").Digest)
			if u, ok := e.ignored[id.String()]; len(e.ignored) != 1 || !ok || !test.class(u.err) {
				t.Errorf("got unreadable records %v, want %s", e.ignored, id)
			}
			if test.class(errdefs.ErrNotImplemented) {
				wantRefused(t, e, id)
				return
			}
			must(t)(e.MakeForNamespace(e.ctx, "", id, root("two"), ByUse, false))
			wantEqual(t, "unreadable", len(e.ignored), 0)
			e.reload(t)
			p, ok = e.Get(id)
			wantEqual(t, "readable", ok, true)
			wantEqual(t, "root", p.Root.Digest, root("two").Digest)
		})
	}
}

// wantRefused checks that this release does not change a pin of a newer release.
func wantRefused(t *testing.T, e *env, id ID) {
	t.Helper()
	before, err := e.node.Images.Get(namespaced(e.ctx), id.String())
	if err != nil {
		t.Fatal(err)
	}
	_, made := e.MakeForNamespace(e.ctx, "", id, root("two"), ByUse, false)
	_, moved := e.Move(e.ctx, id, root("two"), ByOperator, true)
	for what, err := range map[string]error{"make": made, "move": moved, "check": e.CheckReadable(id)} {
		var known *imagepin.Error
		if !errors.As(err, &known) || known.Reason != imagepin.PinOfNewerRelease || !errdefs.IsNotImplemented(err) || !strings.Contains(known.Hint, "imagepin pin rm") {
			t.Errorf("%s: got %v, want reason PinOfNewerRelease", what, err)
		}
	}
	after, err := e.node.Images.Get(namespaced(e.ctx), id.String())
	if err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "the record", after, before)
}

// TestMakeRace makes one pin concurrently, and checks that all calls return the pin of the first call.
func TestMakeRace(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	got := make([]digest.Digest, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			p, err := e.MakeForNamespace(e.ctx, "", id, root(fmt.Sprint(i)), ByUse, false)
			if err != nil {
				t.Error(err)
			}
			got[i] = p.Root.Digest
		})
	}
	wg.Wait()
	wantEqual(t, "different pins", len(slices.Compact(slices.Sorted(slices.Values(got)))), 1)
	wantEqual(t, "notified", e.notified, []string{"made " + ref})
	wantEqual(t, "writes", e.wrote, 1)
	e.reload(t)
	p, _ := e.Get(id)
	wantEqual(t, "after a restart", p.Root.Digest, got[0])
}

// TestMove checks that a pin keeps a limited number of earlier digests.
func TestMove(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.WorkloadScope(strings.Repeat("n", 63), "controller-revision-hash", strings.Repeat("v", 63)), Ref: "registry.example/" + strings.Repeat("a", 200) + ":" + strings.Repeat("t", 128)}
	for i := range 40 {
		must(t)(e.Move(e.ctx, id, root(fmt.Sprint(i)), ByRefresh, false))
	}
	e.reload(t)
	p, ok := e.Get(id)
	wantEqual(t, "exists", ok, true)
	wantEqual(t, "root", p.Root.Digest, root("39").Digest)
	wantEqual(t, "history", len(p.History), maxHistory)
	wantEqual(t, "last earlier digest", p.History[maxHistory-1].Digest, root("38").Digest)
	wantEqual(t, "first earlier digest", p.History[0].Digest, root("23").Digest)
	if err := e.RecordDrift(e.ctx, id, root("drift").Digest); err != nil {
		t.Fatal(err)
	}
	before := len(e.notified)
	p = must(t)(e.Move(e.ctx, id, root("39"), ByOperator, true))
	wantEqual(t, "history", len(p.History), maxHistory)
	wantEqual(t, "retain", p.Retain, true)
	if p.Drift != nil || p.By != ByOperator || len(e.notified) != before {
		t.Errorf("move to the same digest: got pin %+v, notifications %q", p, e.notified[before:])
	}
}

// TestRefresh moves a pin that has not changed since it was read. A pin that retains content only moves if room is
// reserved.
func TestRefresh(t *testing.T) {
	id := ID{Scope: policy.NodeScope, Ref: ref}
	retain := func(e *env) { must(t)(e.Move(e.ctx, id, root("old"), ByOperator, true)) }
	for name, test := range map[string]struct {
		change   func(*env) // after the pin was read
		reserved bool
		want     *Pin // nil if there is no pin
		err      error
	}{
		"unchanged":             {change: func(*env) {}, want: &Pin{Root: root("new"), By: ByRefresh}},
		"unchanged, reserved":   {change: func(*env) {}, reserved: true, want: &Pin{Root: root("new"), By: ByRefresh}},
		"retained":              {change: retain, reserved: true, want: &Pin{Root: root("new"), By: ByOperator, Retain: true}},
		"retained without room": {change: retain, want: &Pin{Root: root("old"), By: ByOperator, Retain: true}, err: ErrNoRoom},
		"moved": {
			change: func(e *env) { must(t)(e.Move(e.ctx, id, root("other"), ByOperator, true)) },
			want:   &Pin{Root: root("other"), By: ByOperator, Retain: true},
		},
		"removed": {change: func(e *env) { must(t)(e.Remove(e.ctx, id)) }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, 0)
			read := must(t)(e.MakeForNamespace(e.ctx, "", id, root("old"), ByUse, false))
			test.change(e)
			got, err := e.Store.Refresh(e.ctx, read, root("new"), test.reserved)
			if !errors.Is(err, test.err) {
				t.Fatalf("got error %v, want %v", err, test.err)
			}
			now, ok := e.Get(id)
			wantEqual(t, "exists", ok, test.want != nil)
			if test.want == nil {
				wantEqual(t, "returned digest", got.Root.Digest, read.Root.Digest)
				return
			}
			if err == nil {
				wantEqual(t, "returned digest", got.Root.Digest, now.Root.Digest)
			}
			wantEqual(t, "digest", now.Root.Digest, test.want.Root.Digest)
			wantEqual(t, "by", now.By, test.want.By)
			wantEqual(t, "retain", now.Retain, test.want.Retain)
		})
	}
}

// TestRecordDrift checks that each change of a drift, and its end, is recorded once.
func TestRecordDrift(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	if err := e.RecordDrift(e.ctx, id, root("two").Digest); err != nil {
		t.Fatal(err)
	}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false))
	for _, tag := range []string{"one", "two", "two", "three", "two", "one", "one", "two"} {
		if err := e.RecordDrift(e.ctx, id, root(tag).Digest); err != nil {
			t.Fatal(err)
		}
		p, _ := e.Get(id)
		if drifted := p.Drift != nil; drifted != (tag != "one") || drifted && p.Drift.Digest != root(tag).Digest {
			t.Errorf("tag %s: got drift %v", tag, p.Drift)
		}
	}
	wantEqual(t, "notified", e.notified, []string{"made " + ref, "drifted " + ref, "drifted " + ref, "drifted " + ref, "drifted " + ref})
	wantEqual(t, "writes", e.wrote, 6)
	e.reload(t)
	p, _ := e.Get(id)
	wantEqual(t, "after a restart", p.Drift.Digest, root("two").Digest)
}

// age sets the times at which a pin was made and last used.
func (e *env) age(t *testing.T, id ID, ago time.Duration) {
	t.Helper()
	when := time.Now().Add(-ago).UTC()
	img := images.Image{Name: id.String(), Labels: map[string]string{
		labelUsed: when.Format(time.DateOnly), labelMade: when.Format(time.RFC3339),
	}}
	if _, err := e.node.Images.Update(namespaced(e.ctx), img, "labels."+labelUsed, "labels."+labelMade); err != nil {
		t.Fatal(err)
	}
	e.reload(t)
}

// TestTouch checks that Touch writes at most once a day.
func TestTouch(t *testing.T) {
	e := newEnv(t, 0)
	id := ID{Scope: policy.NodeScope, Ref: ref}
	must(t)(e.MakeForNamespace(e.ctx, "", id, root("one"), ByUse, false))
	touch := func() int {
		t.Helper()
		before := e.wrote
		for range 3 {
			if err := e.Touch(e.ctx, id); err != nil {
				t.Fatal(err)
			}
		}
		return e.wrote - before
	}
	wantEqual(t, "writes on the day it was made", touch(), 0)
	e.age(t, id, 48*time.Hour)
	wantEqual(t, "writes two days later", touch(), 1)
	e.reload(t)
	wantEqual(t, "writes after a restart", touch(), 0)
	wantEqual(t, "notified", e.notified, []string{"made " + ref})
	if err := e.Touch(e.ctx, ID{Scope: policy.NodeScope, Ref: "registry.example/none:1"}); err != nil {
		t.Error(err)
	}
}

// TestExpire checks that Expire removes pins that are not in use and were not used for a long time.
func TestExpire(t *testing.T) {
	e := newEnv(t, 0)
	pins := map[string]time.Duration{"old": 40 * 24 * time.Hour, "used": 40 * 24 * time.Hour, "new": time.Hour}
	idOf := func(name string) ID { return ID{Scope: policy.NodeScope, Ref: "registry.example/" + name + ":1"} }
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		must(t)(e.MakeForNamespace(e.ctx, "", idOf(name), root(name), ByUse, false))
	}
	for name, ago := range pins {
		e.age(t, idOf(name), ago)
	}
	e.notified = nil
	inUse := map[ID]bool{idOf("used"): true}
	expire := func() {
		t.Helper()
		if err := e.Expire(e.ctx, time.Now().Add(-30*24*time.Hour), func(id ID) bool { return inUse[id] }, KeepNone); err != nil {
			t.Fatal(err)
		}
	}
	expire()
	wantEqual(t, "notified", e.notified, []string{"expired " + idOf("old").Ref})
	e.reload(t)
	for name, want := range map[string]bool{"old": false, "used": true, "new": true} {
		_, ok := e.Get(idOf(name))
		wantEqual(t, name+" exists", ok, want)
	}
	// The first Expire updated the last use of the pin in use.
	inUse = nil
	expire()
	wantEqual(t, "pins", len(e.List()), 2)
}

// TestExpireKeeps checks that unused pins stay that the caller keeps, as they are, and that only those are asked for that are not in
// use.
func TestExpireKeeps(t *testing.T) {
	e := newEnv(t, 0)
	idOf := func(name string) ID { return ID{Scope: policy.NodeScope, Ref: "registry.example/" + name + ":1"} }
	for _, name := range []string{"kept", "old", "used", "again"} {
		must(t)(e.MakeForNamespace(e.ctx, "", idOf(name), root(name), ByUse, false))
		e.age(t, idOf(name), 40*24*time.Hour)
	}
	before, _ := e.Get(idOf("kept"))
	var asked []string
	keep := func(ctx context.Context, unused []Pin) map[ID]bool {
		for _, p := range unused {
			asked = append(asked, p.Ref)
		}
		must(t)(e.MakeForNamespace(ctx, "", idOf("again"), root("again"), ByUse, false)) // it is used during the question
		return map[ID]bool{idOf("kept"): true}
	}
	if err := e.Expire(e.ctx, time.Now().Add(-30*24*time.Hour), func(id ID) bool { return id == idOf("used") }, keep); err != nil {
		t.Fatal(err)
	}
	slices.Sort(asked)
	if want := []string{idOf("again").Ref, idOf("kept").Ref, idOf("old").Ref}; !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
	for name, want := range map[string]bool{"kept": true, "old": false, "used": true, "again": true} {
		_, ok := e.Get(idOf(name))
		wantEqual(t, name+" exists", ok, want)
	}
	if now, _ := e.Get(idOf("kept")); !now.UsedAt.Equal(before.UsedAt) {
		t.Errorf("the pin that is kept counts as used at %s, want %s", now.UsedAt, before.UsedAt)
	}
}

// TestPinLimit checks the limit on the pins of each Kubernetes namespace and of the node.
func TestPinLimit(t *testing.T) {
	e := newEnv(t, 2)
	id := func(namespace, name string) ID {
		scope := policy.NodeScope
		if namespace != "" {
			scope = policy.WorkloadScope(namespace, "hash", name)
		}
		return ID{Scope: scope, Ref: "registry.example/" + name + ":1"}
	}
	for _, namespace := range []string{"", "shop", "till"} {
		for _, name := range []string{"a", "b"} {
			must(t)(e.MakeForNamespace(e.ctx, "", id(namespace, name), root(name), ByUse, false))
		}
		_, made := e.MakeForNamespace(e.ctx, "", id(namespace, "c"), root("c"), ByUse, false)
		_, moved := e.Move(e.ctx, id(namespace, "c"), root("c"), ByUse, false)
		for _, err := range []error{made, moved} {
			var known *imagepin.Error
			if !errors.As(err, &known) || known.Reason != imagepin.PinLimitReached || !errdefs.IsResourceExhausted(err) {
				t.Errorf("pin above the limit in %q: got %v, want reason PinLimitReached", namespace, err)
			}
		}
		must(t)(e.MakeForNamespace(e.ctx, "", id(namespace, "a"), root("other"), ByUse, false))
		must(t)(e.Move(e.ctx, id(namespace, "a"), root("other"), ByUse, false))
		must(t)(e.Remove(e.ctx, id(namespace, "b")))
		must(t)(e.MakeForNamespace(e.ctx, "", id(namespace, "c"), root("c"), ByUse, false))
	}
}
