package security

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityDocs checks that every row of docs/security.md names tests, and that these exist.
func TestSecurityDocs(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	exists := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		code, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(code, -1) {
			exists[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)[A-Z]\\w*)`")
	rows := 0
	for line := range strings.Lines(string(text)) {
		names := named.FindAllStringSubmatch(line, -1)
		for _, n := range names {
			if !exists[n[1]] {
				t.Errorf("test %s does not exist", n[1])
			}
		}
		// Skip all lines but the rows of tables below their headings.
		if !strings.HasPrefix(line, "| ") || strings.HasSuffix(line, "| test |\n") {
			continue
		}
		rows++
		if len(names) == 0 {
			t.Errorf("a row names no test: %s", line)
		}
	}
	if rows < 20 {
		t.Errorf("got %d rows, want at least 20", rows)
	}
}
