package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
	"github.com/imagepin/imagepin/pkg/imagepin/durable"
	"github.com/imagepin/imagepin/pkg/imagepin/pull"
	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestBoot checks that a boot is compared once it is recorded, and what counts as older than it.
func TestBoot(t *testing.T) {
	dir := t.TempDir()
	n := &Node{compared: durable.BootsIn(dir, "compared")}
	b, ok := n.boot().(*boot)
	if !ok || b.ID() == "" || b.began.IsZero() || b.began.After(time.Now()) {
		t.Fatalf("got boot %+v", b)
	}
	check := func(when string, compared, older bool) {
		t.Helper()
		if got, err := b.Compared(); err != nil || got != compared {
			t.Errorf("%s: compared: got %t, %v, want %t", when, got, err, compared)
		}
		if got := b.Older(time.Now()); got != older {
			t.Errorf("%s: what was made now is older: got %t, want %t", when, got, older)
		}
		if !b.Older(b.began.Add(-time.Minute)) {
			t.Errorf("%s: what was made before the boot is not older", when)
		}
	}
	check("without a record", false, false)
	if err := os.WriteFile(filepath.Join(dir, "compared"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("after another boot", false, true)
	for range 2 {
		if err := b.SetCompared(); err != nil {
			t.Fatal(err)
		}
		check("when it is recorded", true, true)
	}
	if now := time.Now(); b.Before(now) || !b.Before(now.Add(-1000*24*time.Hour)) {
		t.Error("now is before the boot, or what is years ago is not")
	}
	failure := errors.New("input/output error")
	for _, c := range []struct {
		durable func(context.Context, store.Snapshot) (string, error)
		is      func(error) bool
	}{
		{nil, errdefs.IsNotImplemented},
		{func(context.Context, store.Snapshot) (string, error) { return "", nil }, errdefs.IsNotImplemented},
		{func(context.Context, store.Snapshot) (string, error) { return "", failure }, func(err error) bool { return errors.Is(err, failure) }},
		{func(context.Context, store.Snapshot) (string, error) { return "boot", nil }, func(err error) bool { return err == nil }},
	} {
		n.active.Store(&active{pull: &pull.Settings{Durable: c.durable}})
		if err := b.Sync(t.Context(), imagepin.Entry{}); !c.is(err) {
			t.Errorf("sync: got %v", err)
		}
	}
}
