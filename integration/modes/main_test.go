package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDifferences checks that every difference names a test that exists and has a row in docs/standalone.md.
func TestDifferences(t *testing.T) {
	files, err := filepath.Glob("../*/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("find test files: got %q, %v", files, err)
	}
	var tests strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(b)
	}
	doc, err := os.ReadFile("../../docs/standalone.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range pluginOnly {
		if !strings.Contains(tests.String(), "\nfunc "+d.test+"(t *testing.T)") {
			t.Errorf("no test %s", d.test)
		}
		if row := "| " + d.reason + " | `" + d.test + "` |"; !strings.Contains(string(doc), row) {
			t.Errorf("docs/standalone.md has no row\n%s", row)
		}
	}
	if rows := strings.Count(string(doc), " | `Test"); rows != len(pluginOnly) {
		t.Errorf("docs/standalone.md: got %d rows of tests, want %d", rows, len(pluginOnly))
	}
}
