package upstream

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/printer"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// elsewhere are the entries without a source in their comment, and the tests that check them.
var elsewhere = map[string]string{
	"SnapshotType": "TestLeaseTypes", "Snapshotters": "TestSnapshotters", "ExpectedDigest": "TestExpectedDigest", "ImageUser": "TestImageUser", "LowerDirs": "TestLowerDirs",
}

// TestTexts compares each constant with its source in each supported version of containerd, and in Kubernetes: the value of a
// constant or variable, or a literal in a function.
func TestTexts(t *testing.T) {
	for file, f := range own(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			if d, ok := n.(*ast.FuncDecl); ok && d.Name.IsExported() && elsewhere[d.Name.Name] == "" {
				t.Errorf("no test compares %s with its source", d.Name.Name)
			}
			s, ok := n.(*ast.ValueSpec)
			if !ok || !s.Names[0].IsExported() || elsewhere[s.Names[0].Name] != "" {
				return true
			}
			name := s.Names[0].Name
			text, err := textOf(module{}, file, s.Values[0])
			if err != nil {
				t.Error(err)
			}
			sources := sourcesIn(s.Comment, s.Doc)
			if len(sources) == 0 {
				t.Errorf("%s names no source, such as core/metadata/gc.go: labelGCSnapRef", name)
			}
			for _, from := range sources {
				wantText(t, name, text, from)
			}
			return true
		})
	}
}

func wantText(t *testing.T, name, text string, from source) {
	t.Helper()
	in, inside := modulesOf(t, from.file)
	for _, m := range in {
		if m.minor < from.since {
			continue
		}
		file := filepath.Join(m.dir, inside)
		files, err := filesIn(filepath.Dir(file))
		if err != nil || files[file] == nil {
			t.Errorf("%s: %s has no %s: %v", name, m.dir, inside, err)
			continue
		}
		functions, value := declared(files[file], from.name)
		if value != nil {
			if got, err := textOf(m, file, value); err != nil || got != text {
				t.Errorf("%s is %q, and %s in %s is %q, %v", name, text, from.name, file, got, err)
			}
			continue
		}
		if len(functions) == 0 {
			t.Errorf("%s: %s declares no %s", name, file, from.name)
		} else if !hasLiteral(m, file, functions, text) {
			t.Errorf("%s: %s in %s has no literal with %q", name, from.name, file, text)
		}
	}
}

func hasLiteral(m module, file string, functions []*ast.FuncDecl, text string) (found bool) {
	for _, function := range functions {
		ast.Inspect(function.Body, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok {
				got, err := textOf(m, file, l)
				found = found || err == nil && strings.Contains(got, text)
			}
			return !found
		})
	}
	return found
}

// TestFunctions fails if a function has changed whose behavior imagepin follows. Then read what its entry says, and the code that
// is named there, before you replace the sum.
func TestFunctions(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range own(t) {
		values := make(map[*ast.CommentGroup]bool) // the comments of constants with a value to compare
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.ValueSpec); ok {
				values[s.Doc], values[s.Comment] = true, true
			}
			return true
		})
		for _, c := range f.Comments {
			if values[c] {
				continue
			}
			for _, from := range sourcesIn(c) {
				in, inside := modulesOf(t, from.file)
				file := filepath.Join(in[0].dir, inside)
				files, err := filesIn(filepath.Dir(file))
				if err != nil || files[file] == nil {
					t.Errorf("%s has no %s: %v", in[0].dir, inside, err)
					continue
				}
				functions, _ := declared(files[file], from.name)
				if len(functions) == 0 {
					t.Errorf("%s declares no function %s", file, from.name)
					continue
				}
				id := from.file + ": " + from.name
				if sum := sumOf(t, functions); sums[id] != sum {
					t.Errorf("%s: changed, or new: %q: %q,", fileSet.Position(functions[0].Pos()), id, sum)
				}
				seen[id] = true
			}
		}
	}
	for id := range sums {
		if !seen[id] {
			t.Errorf("%s is not named in a comment", id)
		}
	}
}

// sumOf returns the sum of functions without comments and white space.
func sumOf(t *testing.T, functions []*ast.FuncDecl) string {
	t.Helper()
	var b bytes.Buffer
	for _, f := range functions {
		if err := printer.Fprint(&b, fileSet, &ast.FuncDecl{Recv: f.Recv, Name: f.Name, Type: f.Type, Body: f.Body}); err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(strings.Fields(b.String()), " "))))[:12]
}

// TestNamed fails if a comment names code or a test of this repository that does not exist.
func TestNamed(t *testing.T) {
	pattern := regexp.MustCompile(`(\w+(?:, \w+)*) in ((?:pkg|plugins|internal|integration)/[\w/]+)`)
	for _, f := range own(t) {
		for _, c := range f.Comments {
			text := strings.Join(strings.Fields(c.Text()), " ")
			for _, found := range pattern.FindAllStringSubmatch(text, -1) {
				code := sourceOf(t, filepath.Join("../..", found[2]))
				for _, name := range strings.Split(found[1], ", ") {
					if !regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |var |const |\t)` + name + `\b`).MatchString(code) {
						t.Errorf("%s declares no %s", found[2], name)
					}
				}
			}
		}
	}
}

// sourceOf returns the text of all files of a package, with its tests.
func sourceOf(t *testing.T, dir string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(names) == 0 {
		t.Errorf("%s is not a package", dir)
	}
	var all strings.Builder
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}
