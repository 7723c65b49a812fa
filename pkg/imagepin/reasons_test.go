package imagepin_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestReasonsAreDocumented checks that docs/troubleshooting.md has a row and an example of every reason.
func TestReasonsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	f, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	ast.Inspect(f, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return true
		}
		n++
		reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || reason != spec.Names[0].Name {
			t.Errorf("%s has the value %s", spec.Names[0].Name, reason)
		}
		if !strings.Contains(doc, "\n| `"+reason+"` | ") {
			t.Errorf("docs/troubleshooting.md has no row of %s", reason)
		}
		if !strings.Contains(doc, "\n### "+reason+"\n") {
			t.Errorf("docs/troubleshooting.md has no example of %s", reason)
		}
		return true
	})
	if n < 20 {
		t.Errorf("found %d reasons", n)
	}
}
