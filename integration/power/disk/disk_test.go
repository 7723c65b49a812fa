package disk_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/imagepin/imagepin/integration/power/disk"
)

func TestMain(m *testing.M) { disk.Main(m) }

const size = 200 << 10

func put(t *testing.T, d *disk.Disk, at int64, content string) {
	t.Helper()
	if n, err := d.WriteAt([]byte(content), at); n != len(content) || err != nil {
		t.Fatalf("wrote %d bytes, %v", n, err)
	}
}

func want(t *testing.T, d *disk.Disk, at int64, content string) {
	t.Helper()
	b := make([]byte, len(content))
	if n, err := d.ReadAt(b, at); n != len(b) || err != nil || string(b) != content {
		t.Errorf("got %q (%d bytes, %v) at %d, want %q", b, n, err, at, content)
	}
}

// TestCut writes to a disk and to its copies, also over the end of a chunk.
func TestCut(t *testing.T) {
	d := disk.New(size)
	const border = 64<<10 - 2
	put(t, d, border, "before")
	first := d.Cut()
	put(t, d, border, "BE")
	second := d.Cut()
	put(t, second, border+4, "RE")
	put(t, d, 0, "late")
	want(t, first, border, "before")
	want(t, second, border, "BEfoRE")
	want(t, d, border, "BEfore")
	want(t, first, 0, "\x00\x00\x00\x00")
	d.Off()
	put(t, d, 0, "lost")
	want(t, d, 0, "late")
}

// TestVolatileCache cuts power from a disk with a volatile cache. What was flushed is always there. Of what was not, the disk
// loses everything, nothing, and each part.
func TestVolatileCache(t *testing.T) {
	d := disk.New(size)
	d.SetVolatileCache()
	put(t, d, 0, "flushed")
	d.Flush()
	put(t, d, 0, "F")
	put(t, d, 100<<10, "x")
	want(t, d, 0, "Flushed")
	seen := map[string]bool{}
	for range 200 {
		c := d.Cut()
		want(t, c, 1, "lushed")
		b := make([]byte, 1)
		_, _ = c.ReadAt(b, 0)
		x := make([]byte, 1)
		_, _ = c.ReadAt(x, 100<<10)
		seen[string(b)+string(x)] = true
	}
	for _, state := range []string{"Fx", "F\x00", "fx", "f\x00"} {
		if !seen[state] {
			t.Errorf("no cut has %q, got %v", state, seen)
		}
	}
	if d.Flush(); d.Flushes() != 2 {
		t.Errorf("%d flushes, not 2", d.Flushes())
	}
	want(t, d.Cut(), 0, "Flushed")
}

// TestSamples selects from states.
func TestSamples(t *testing.T) {
	seen := map[int]int{}
	for range 300 {
		d := disk.New(size)
		n := 0
		d.BeginSamples(2, func() int { return n })
		for range 3 {
			n++
			put(t, d, 0, string(rune('0'+n)))
		}
		samples := d.EndSamples()
		if len(samples) != 2 || samples[0].Label == samples[1].Label {
			t.Fatalf("samples %v", samples)
		}
		for _, s := range samples {
			want(t, s.Disk, 0, string(rune('0'+s.Label)))
			seen[s.Label]++
		}
		put(t, d, 0, "x")
		want(t, samples[0].Disk, 0, string(rune('0'+samples[0].Label)))
	}
	for label := 1; label <= 3; label++ {
		if seen[label] < 100 {
			t.Errorf("state %d was selected %d times, want about 200", label, seen[label])
		}
	}
}

// TestMount writes three files to a file system and cuts power. The one that was synced is there, the one that was not has no
// content, and neither does the disk that goes on change the copy, nor the copy the disk.
func TestMount(t *testing.T) {
	d, err := disk.Format(256 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("content "), 4<<10)
	create(t, dir, "lazy", content, false)
	create(t, dir, "synced", content, true)
	cut := d.Cut()
	create(t, dir, "later", content, true)
	if err := m.Unmount(); err != nil {
		t.Fatal(err)
	}
	c, err := cut.MountCopy(dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "synced")); err != nil || !bytes.Equal(b, content) {
		t.Errorf("the synced file has %d bytes, %v", len(b), err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "lazy")); len(b) != 0 {
		t.Errorf("the file that is only in the page cache has %d bytes", len(b))
	}
	if _, err := os.Stat(filepath.Join(dir, "later")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file of after the cut: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "synced")); err != nil {
		t.Fatal(err)
	}
	if err := c.Unmount(); err != nil {
		t.Fatal(err)
	}
	if m, err = d.Mount(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lazy", "synced", "later"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(b, content) {
			t.Errorf("after a clean unmount, %s has %d bytes, %v", name, len(b), err)
		}
	}
	if err := m.Unmount(); err != nil {
		t.Fatal(err)
	}
}

// TestUnmountOpen unmounts a disk while a file is open, as it is in a child of this process until it executes its program. The content
// of the file is on the disk when it is closed and Unmount has returned.
func TestUnmountOpen(t *testing.T) {
	d, err := disk.Format(256 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	m, err := d.Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "open"))
	if err != nil {
		t.Fatal(err)
	}
	unmounted := make(chan error, 1)
	go func() { unmounted <- m.Unmount() }()
	for mounted := true; mounted; {
		select {
		case err := <-unmounted:
			t.Fatalf("Unmount has not waited for the file: %v", err)
		default:
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		mounted = len(entries) > 0
	}
	if _, err := f.WriteString("content"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-unmounted; err != nil {
		t.Fatal(err)
	}
	c, err := d.Cut().MountCopy(dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "open")); err != nil || string(b) != "content" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if err := c.Unmount(); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, dir, name string, content []byte, sync bool) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}
