package health

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
)

// TestBrokenFile checks what is known to be wrong with the file of a snapshot before it is mounted.
func TestBrokenFile(t *testing.T) {
	erofs := make([]byte, 3<<12)
	binary.LittleEndian.PutUint32(erofs[erofsSuper:], erofsMagic)
	erofs[erofsSuper+12] = 12
	binary.LittleEndian.PutUint32(erofs[erofsSuper+36:], 3)
	for name, c := range map[string]struct {
		kind    string
		content []byte
		want    string // the end of the answer; empty is none
	}{
		"EROFS":                  {"erofs", erofs, ""},
		"EROFS, empty":           {"erofs", nil, " is empty"},
		"EROFS, short":           {"erofs", erofs[:100], " has 100 bytes"},
		"EROFS, truncated":       {"erofs", erofs[:2<<12], " has 8192 bytes instead of 12288"},
		"EROFS, zeros":           {"erofs", make([]byte, 3<<12), " is no EROFS file system"},
		"another, empty":         {"ext4", nil, " is empty"},
		"another, anything else": {"ext4", []byte("x"), ""},
	} {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := brokenFile(mount.Mount{Type: c.kind, Source: path})
		if err != nil || (got == "") != (c.want == "") || !strings.HasSuffix(got, c.want) {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
	for _, source := range []string{t.TempDir(), "overlay", "/no/such/file"} {
		if got, err := brokenFile(mount.Mount{Type: "bind", Source: source}); err != nil || got != "" {
			t.Errorf("%s: got %q, %v", source, got, err)
		}
	}
}
