package upstream

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// module is the source of a module, of the version that a go.mod of this repository requires.
type module struct {
	path, dir string
	minor     int // of the version
}

// newest is the containerd that imagepin is built from.
func newest(t *testing.T) module { return moduleOf(t, "../..", containerd) }

const containerd = "github.com/containerd/containerd/v2"

var downloads sync.Map // functions that return the directory and the version of a module, by go.mod and module

// moduleOf downloads a module that the go.mod of a directory requires, if the module cache does not have it.
func moduleOf(t *testing.T, dir, name string) module {
	t.Helper()
	// go test runs this test again only if a file changes that it has read.
	if _, err := os.ReadFile(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatal(err)
	}
	download, _ := downloads.LoadOrStore(dir+" "+name, sync.OnceValues(func() (module, error) {
		cmd := exec.Command("go", "mod", "download", "-json", name)
		cmd.Dir = dir
		out, err := cmd.Output()
		var got struct{ Dir, Version, Error string }
		if jerr := json.Unmarshal(out, &got); jerr != nil || got.Dir == "" {
			return module{}, fmt.Errorf("download %s of %s: %v %s", name, dir, err, got.Error)
		}
		parts := strings.Split(got.Version, ".")
		minor, err := strconv.Atoi(parts[1])
		return module{name, got.Dir, minor}, err
	}))
	m, err := download.(func() (module, error))()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// modulesOf returns the modules in which a source is: a path in containerd, or one that begins with another module. Each
// supported minor version of containerd is one.
func modulesOf(t *testing.T, file string) (in []module, inside string) {
	t.Helper()
	for name, dir := range map[string]string{
		"google.golang.org/grpc": "../..", "k8s.io/kubernetes": "../../integration/kubelet/binaries",
		"k8s.io/api": "../../integration/kubelet/binaries", "k8s.io/kubelet": "../../integration/kubelet/binaries",
	} {
		if rest, ok := strings.CutPrefix(file, name+"/"); ok {
			return []module{moduleOf(t, dir, name)}, rest
		}
	}
	others, err := filepath.Glob("../../integration/versions/*/go.mod")
	if err != nil || len(others) == 0 {
		t.Fatal("no other versions of containerd", err)
	}
	in = []module{newest(t)}
	for _, mod := range others {
		in = append(in, moduleOf(t, filepath.Dir(mod), containerd))
	}
	return in, file
}

var packages sync.Map // functions that return the files of a package, by directory

// filesIn parses the files of a package that are not tests, by path.
func filesIn(dir string) (map[string]*ast.File, error) {
	parse, _ := packages.LoadOrStore(dir, sync.OnceValues(func() (map[string]*ast.File, error) {
		all := make(map[string]*ast.File)
		names, err := filepath.Glob(filepath.Join(dir, "*.go"))
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			if all[name], err = parser.ParseFile(fileSet, name, nil, parser.ParseComments); err != nil {
				return nil, err
			}
		}
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("package %s: %w", dir, fs.ErrNotExist)
		}
		return all, err
	}))
	return parse.(func() (map[string]*ast.File, error))()
}

var fileSet = token.NewFileSet()

// declared returns what a file declares by a name: functions and methods, or the value of a constant or variable.
func declared(f *ast.File, name string) (functions []*ast.FuncDecl, value ast.Expr) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.Name == name {
				functions = append(functions, d)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				v, ok := s.(*ast.ValueSpec)
				for i := 0; ok && i < len(v.Values); i++ {
					if v.Names[i].Name == name {
						value = v.Values[i]
					}
				}
			}
		}
	}
	return functions, value
}

// textOf evaluates an expression to a string, in a file of a module.
func textOf(m module, file string, e ast.Expr) (string, error) {
	switch e := e.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.ParenExpr:
		return textOf(m, file, e.X)
	case *ast.CallExpr: // a conversion
		return textOf(m, file, e.Args[0])
	case *ast.BinaryExpr:
		x, err := textOf(m, file, e.X)
		if err != nil {
			return "", err
		}
		y, err := textOf(m, file, e.Y)
		return x + y, err
	case *ast.Ident:
		return valueIn(m, filepath.Dir(file), e.Name)
	case *ast.SelectorExpr:
		files, err := filesIn(filepath.Dir(file))
		if err != nil {
			return "", err
		}
		for _, i := range files[file].Imports {
			p, err := strconv.Unquote(i.Path.Value)
			inside, ok := strings.CutPrefix(p, m.path+"/")
			if name, isName := e.X.(*ast.Ident); err == nil && ok && isName && (i.Name != nil && i.Name.Name == name.Name || path.Base(p) == name.Name) {
				return valueIn(m, filepath.Join(m.dir, inside), e.Sel.Name)
			}
		}
	}
	return "", fmt.Errorf("%s: not a string that is known: %T", file, e)
}

// valueIn returns the text of a constant or variable of a package.
func valueIn(m module, dir, name string) (string, error) {
	files, err := filesIn(dir)
	if err != nil {
		return "", err
	}
	for file, f := range files {
		if _, e := declared(f, name); e != nil {
			return textOf(m, file, e)
		}
	}
	return "", fmt.Errorf("%s declares no %s", dir, name)
}

// source is what a comment of this package names: a function, a constant or a variable of a file.
type source struct {
	file, name string
	since      int // the minor version of containerd that was the first to have it; 0 if each supported one has it
}

var sourcePattern = regexp.MustCompile(`([\w./-]+\.go): (\w+(?: and \w+)*)(?:, since 2\.(\d+))?`)

func sourcesIn(comments ...*ast.CommentGroup) (all []source) {
	for _, c := range comments {
		for _, found := range sourcePattern.FindAllStringSubmatch(c.Text(), -1) {
			since, _ := strconv.Atoi(found[3])
			for _, name := range strings.Split(found[2], " and ") {
				all = append(all, source{found[1], name, since})
			}
		}
	}
	return all
}

// own are the files of this package.
func own(t *testing.T) map[string]*ast.File {
	t.Helper()
	files, err := filesIn(".")
	if err != nil {
		t.Fatal(err)
	}
	return files
}
