package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnusedDrops names the drop directories that have locks or bundles, and the plugin.
func TestUnusedDrops(t *testing.T) {
	locks, bundles := t.TempDir(), t.TempDir()
	s := Settings{LocksDirectory: locks, BundlesDirectory: bundles}
	touch := func(paths ...string) {
		for _, path := range paths {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	touch(filepath.Join(locks, ".new.yaml"), filepath.Join(locks, "c.yaml.swp"), filepath.Join(locks, "1.tar"), filepath.Join(bundles, "README.json"))
	for _, s := range []Settings{{}, s, {LocksDirectory: filepath.Join(locks, "absent")}} {
		if got := s.UnusedDrops(); got != "" {
			t.Errorf("without a file that is applied: %q", got)
		}
	}
	touch(filepath.Join(bundles, "1.tar.zst"))
	if got := s.UnusedDrops(); strings.Contains(got, locks) || !strings.Contains(got, bundles+": plugin io.containerd.imagepin.part.v1.fleet") {
		t.Errorf("with a bundle: %q", got)
	}
	touch(filepath.Join(locks, "a.yml"))
	if got := s.UnusedDrops(); !strings.Contains(got, locks+" and "+bundles) {
		t.Errorf("with both: %q", got)
	}
}
