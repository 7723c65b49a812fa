package pull

import (
	"context"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/imagepin/imagepin/pkg/imagepin/store"
)

// TestGuestPullChanges does not record an image that was unpacked while its snapshotter got no files, if it gets files now.
func TestGuestPullChanges(t *testing.T) {
	n, ref := newLockedNode(t)
	config := &n.Puller.maker.config
	settings := *config.Settings()
	now := &settings
	config.Settings = func() *Settings { return now }
	n.Puller.maker.unpacker.settings = config.Settings
	settings.ForGuests = map[string]bool{"native": true}
	reload := func(forGuests bool) {
		settings.Durable = func(context.Context, store.Snapshot) (string, error) {
			next := settings
			next.ForGuests = map[string]bool{"native": forGuests}
			now = &next
			return "", nil
		}
	}
	l := Locked{Ref: ref(":1"), Root: n.img.Manifest, From: FromNode}
	reload(false)
	if _, err := n.make(t, l); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "guest_pull") || len(n.store.Images()) > 0 {
		t.Errorf("got %v, images %+v", err, n.store.Images())
	}
	now = &settings
	reload(true)
	if _, err := n.make(t, l); err != nil {
		t.Error(err)
	}
}

// TestIsSandboxImage finds the images of sandboxes, which are unpacked also for guests.
func TestIsSandboxImage(t *testing.T) {
	s := &Settings{SandboxImage: "registry.example/pause:3"}
	for name, want := range map[string]bool{
		"registry.example/pause:3": true, "registry.example/pause:4": true, "registry.example/pause@" + strings.Repeat("a", 64): true,
		"registry.example/pause/app:3": false, "registry.example/app:3": false,
	} {
		if got := s.IsSandboxImage(name); got != want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	for _, none := range []string{"", "Not A Reference"} {
		if (&Settings{SandboxImage: none}).IsSandboxImage("registry.example/pause:3") {
			t.Errorf("without a sandbox image, %q", none)
		}
	}
}
