package pull

import (
	"strings"
	"testing"
)

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
