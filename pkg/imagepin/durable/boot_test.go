package durable

import (
	"os"
	"path/filepath"
	"testing"
)

// TestBoots checks that a boot is settled once.
func TestBoots(t *testing.T) {
	if BootID() == "" {
		t.Fatal("this system has no boot ID")
	}
	dir := filepath.Join(t.TempDir(), "new")
	b := BootsIn(dir, "boot")
	settled := func(want bool) {
		t.Helper()
		if got, err := b.Settled(); err != nil || got != want {
			t.Errorf("settled: %t, %v, want %t", got, err, want)
		}
	}
	settled(false)
	if ever, err := b.Ever(); ever || err != nil {
		t.Errorf("before: ever %t, %v", ever, err)
	}
	for range 2 {
		if err := b.Settle(); err != nil {
			t.Fatal(err)
		}
		settled(true)
	}
	if err := os.WriteFile(filepath.Join(dir, "boot"), []byte("another boot"), 0o600); err != nil {
		t.Fatal(err)
	}
	settled(false)
	if ever, err := b.Ever(); !ever || err != nil {
		t.Errorf("in another boot: ever %t, %v", ever, err)
	}
	for range 2 {
		if err := b.Remove(); err != nil {
			t.Fatal(err)
		}
		settled(false)
	}
	if err := os.Mkdir(filepath.Join(dir, "boot"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Settled(); err == nil {
		t.Error("a boot file that cannot be read: no error")
	}
}
