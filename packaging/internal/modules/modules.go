// Package modules tells which modules a binary is built of, and under which
// licence each of them is.
package modules

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// Go is the name under which the standard library is listed.
const Go = "std"

// Module is a module at a version. The main module has no version.
type Module struct {
	Path, Version string
	// Sum is the hash of its content as go.sum has it ("h1:…"); empty for the
	// main module and the standard library.
	Sum string
}

// Of gives the modules that a binary says it is built of, the main one first,
// the standard library last.
func Of(binary string) ([]Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	out := []Module{{Path: info.Main.Path}}
	for _, d := range info.Deps {
		if d.Replace != nil {
			return nil, fmt.Errorf("%s: %s is replaced, so that it is not what its version says", binary, d.Path)
		}
		if d.Path == info.Main.Path {
			continue
		}
		out = append(out, Module{Path: d.Path, Version: d.Version, Sum: d.Sum})
	}
	return append(out, Module{Path: Go, Version: info.GoVersion}), nil
}

// Linked gives the modules, without the main one and in order of their paths,
// that main packages are built of in a directory for one of several platforms
// (GOOS/GOARCH).
func Linked(dir string, platforms []string, packages ...string) ([]Module, error) {
	var out []Module
	for _, p := range platforms {
		goos, goarch, _ := strings.Cut(p, "/")
		cmd := exec.Command("go", append([]string{"list", "-deps", "-json=Module"}, packages...)...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
		cmd.Stderr = os.Stderr
		list, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", p, err)
		}
		dec := json.NewDecoder(bytes.NewReader(list))
		for {
			var pkg struct {
				Module *struct {
					Path, Version string
					Main          bool
				}
			}
			if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, err
			}
			if m := pkg.Module; m != nil && !m.Main {
				out = append(out, Module{Path: m.Path, Version: m.Version})
			}
		}
	}
	out = append(out, Module{Path: Go, Version: runtime.Version()})
	slices.SortFunc(out, func(a, b Module) int { return strings.Compare(a.Path+" "+a.Version, b.Path+" "+b.Version) })
	return slices.Compact(out), nil
}

// Licence is what a module says of how it may be used.
type Licence struct {
	// ID is the SPDX licence expression.
	ID string
	// Files are the texts, by name: licences, notices, patent grants.
	Files map[string]string
}

// Licences finds the licence of a module in the module cache.
func (m Module) Licences() (Licence, error) {
	dir, err := m.dir()
	if err != nil {
		return Licence{}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return Licence{}, err
	}
	l := Licence{Files: make(map[string]string)}
	var ids []string
	for _, e := range entries {
		if e.IsDir() || !isLegal(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return Licence{}, err
		}
		l.Files[e.Name()] = string(text)
		if isLicence(e.Name()) {
			found := Identify(string(text))
			if len(found) == 0 {
				return Licence{}, fmt.Errorf("%s@%s: nobody has said which licence the text in %s is", m.Path, m.Version, e.Name())
			}
			ids = append(ids, found...)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return Licence{}, fmt.Errorf("%s@%s has no licence in %s", m.Path, m.Version, dir)
	}
	l.ID = strings.Join(ids, " AND ")
	return l, nil
}

func (m Module) dir() (string, error) {
	if m.Path == Go {
		return goEnv("GOROOT")
	}
	cache, err := goEnv("GOMODCACHE")
	if err != nil {
		return "", err
	}
	path, err := module.EscapePath(m.Path)
	if err != nil {
		return "", err
	}
	version, err := module.EscapeVersion(m.Version)
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, path+"@"+version), nil
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// isLicence says whether a file has the licence of code; LICENSE.docs is that
// of a module's documentation, which is not in a binary.
func isLicence(name string) bool {
	name = strings.ToUpper(name)
	return (strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "LICENCE") || strings.HasPrefix(name, "COPYING")) &&
		!strings.HasSuffix(name, ".GO") && !strings.HasSuffix(name, ".DOCS")
}

func isLegal(name string) bool {
	upper := strings.ToUpper(name)
	return isLicence(name) || strings.HasPrefix(upper, "NOTICE") || strings.HasPrefix(upper, "PATENTS")
}
