package node

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin"
)

// TestBoot checks that a boot is compared once it is recorded, and what counts as older than it.
func TestBoot(t *testing.T) {
	dir := t.TempDir()
	b := newBoot(dir, nil)
	if b == nil || b.ID() == "" || b.began.IsZero() || b.began.After(time.Now()) {
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
	if err := os.WriteFile(filepath.Join(dir, bootFile), []byte("another\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("after another boot", false, true)
	for range 2 {
		if err := b.SetCompared(); err != nil {
			t.Fatal(err)
		}
		check("when it is recorded", true, true)
	}
	if err := b.Sync(t.Context(), imagepin.Entry{}); !errdefs.IsNotImplemented(err) {
		t.Errorf("without a barrier: got %v", err)
	}
	synced := newBoot(dir, func(context.Context, imagepin.Entry) error { return errdefs.ErrUnavailable })
	if err := synced.Sync(t.Context(), imagepin.Entry{}); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	unreadable := &boot{path: dir}
	if _, err := unreadable.Compared(); err == nil {
		t.Error("a record that cannot be read is no error")
	}
}
