// Package modules finds the modules of a binary and their licenses.
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

// Go is used as the module path of the standard library.
const Go = "std"

// Module is a module at a version. The main module has no version.
type Module struct {
	Path, Version string
	// Sum is the hash of its content as in go.sum ("h1:…"). It is empty for
	// the main module and the standard library.
	Sum string
}

// self is the module of this repository. Its other modules replace it by their
// own working tree.
const self = "github.com/imagepin/imagepin"

// Of returns the modules in a binary's build information. The main module is
// the first and the standard library the last. The module of this repository is
// not a dependency.
func Of(binary string) ([]Module, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	out := []Module{{Path: info.Main.Path}}
	for _, d := range info.Deps {
		if d.Path == info.Main.Path || d.Path == self {
			continue
		}
		if d.Replace != nil {
			return nil, fmt.Errorf("%s: module %s is replaced, so its version does not identify its content", binary, d.Path)
		}
		out = append(out, Module{Path: d.Path, Version: d.Version, Sum: d.Sum})
	}
	return append(out, Module{Path: Go, Version: info.GoVersion}), nil
}

// Linked returns the modules of packages on any of the platforms (GOOS/GOARCH),
// sorted by path and without the main module. The packages are relative to dir.
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

// License is the license of a module.
type License struct {
	// ID is the SPDX license expression.
	ID string
	// Files are the texts by file name: licenses, notices, patent grants.
	Files map[string]string
}

// License finds the license of a module in the module cache.
func (m Module) License() (License, error) {
	dir, err := m.dir()
	if err != nil {
		return License{}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return License{}, err
	}
	l := License{Files: make(map[string]string)}
	var ids []string
	for _, e := range entries {
		if e.IsDir() || !isLegal(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return License{}, err
		}
		l.Files[e.Name()] = string(text)
		if isLicense(e.Name()) {
			found := Identify(string(text))
			if len(found) == 0 {
				return License{}, fmt.Errorf("%s@%s: unknown license in %s", m.Path, m.Version, e.Name())
			}
			ids = append(ids, found...)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if len(ids) == 0 {
		return License{}, fmt.Errorf("%s@%s: no license in %s", m.Path, m.Version, dir)
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

// isLicense reports whether a file has a license of code. LICENSE.docs is the
// license of a module's documentation, which is not in a binary.
func isLicense(name string) bool {
	name = strings.ToUpper(name)
	return (strings.HasPrefix(name, "LICENSE") || strings.HasPrefix(name, "LICENCE") || strings.HasPrefix(name, "COPYING")) &&
		!strings.HasSuffix(name, ".GO") && !strings.HasSuffix(name, ".DOCS")
}

func isLegal(name string) bool {
	upper := strings.ToUpper(name)
	return isLicense(name) || strings.HasPrefix(upper, "NOTICE") || strings.HasPrefix(upper, "PATENTS")
}
