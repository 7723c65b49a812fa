package failpoint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestNamesAreThoseOfTheSources checks that Names lists exactly the failpoints in the sources.
func TestNamesAreThoseOfTheSources(t *testing.T) {
	const root = "../.."
	found := make(map[string]bool)
	for _, dir := range []string{"pkg", "plugins", "cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if name, ok := reached(t, path, n); ok {
					found[name] = true
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name := range found {
		if !slices.Contains(Names, name) {
			t.Errorf("%s is not in Names", name)
		}
	}
	for i, name := range Names {
		if !found[name] {
			t.Errorf("%s is not in the sources", name)
		}
		if slices.Contains(Names[:i], name) {
			t.Errorf("%s is in Names twice", name)
		}
	}
}

// reached returns the name in a call of Reach.
func reached(t *testing.T, path string, n ast.Node) (string, bool) {
	call, ok := n.(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return "", false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Reach" {
		return "", false
	}
	if pkg, ok := f.X.(*ast.Ident); !ok || pkg.Name != "failpoint" {
		return "", false
	}
	arg, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		t.Errorf("%s: the name of a failpoint is not a literal", path)
		return "", false
	}
	name, err := strconv.Unquote(arg.Value)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return name, err == nil
}
