//go:build unix

package install

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveState checks that the operator's bundles stay, and everything else is removed.
func TestRemoveState(t *testing.T) {
	for name, c := range map[string]struct {
		files []string
		kept  bool
	}{
		"nothing":       {},
		"state":         {files: []string{"node.key", "sub/file"}},
		"empty bundles": {files: []string{"node.key", "bundles/"}},
		"bundles":       {files: []string{"node.key", "sub/file", "bundles/a.tar"}, kept: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			for _, f := range c.files {
				path := filepath.Join(dir, f)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if f[len(f)-1] == '/' {
					if err := os.MkdirAll(path, 0o700); err != nil {
						t.Fatal(err)
					}
				} else if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			kept, err := removeState(dir)
			if err != nil || (kept != "") != c.kept {
				t.Fatalf("kept %q, %v", kept, err)
			}
			left, err := filepath.Glob(dir + "*/*")
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(dir, "bundles"); c.kept && (len(left) != 1 || left[0] != want) || !c.kept && len(left) != 0 {
				t.Errorf("left %q", left)
			}
			if _, err := os.Stat(filepath.Join(dir, "bundles", "a.tar")); (err == nil) != c.kept {
				t.Errorf("the bundle: %v", err)
			}
			if _, err := os.Stat(dir); (err == nil) != c.kept {
				t.Errorf("the directory: %v", err)
			}
		})
	}
}
