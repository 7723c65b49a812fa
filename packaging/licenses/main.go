// Command licenses writes docs/licenses.md, which lists the modules in the
// binaries with their licenses. It fails if a license is not allowed.
//
//	licenses [-check] FILE
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/packaging/internal/modules"
)

// allowed are the licenses on the CNCF's allowlist that the modules have.
// https://github.com/cncf/foundation/blob/main/policies-guidance/allowed-third-party-license-policy.md
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// exceptions are modules that are allowed although their license is not, with
// the reason.
var exceptions = map[string]string{
	"github.com/cyphar/filepath-securejoin": "containerd uses the files under the MPL unmodified",
}

// The binaries in the packages, and their platforms.
var (
	binaries = []string{
		"./cmd/containerd", "./cmd/imagepin",
		"github.com/containerd/containerd/v2/cmd/ctr", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	}
	shipped = []string{"linux/amd64", "linux/arm64"}
)

// The kubectl plugin, a module of its own, and its platforms.
var (
	plugin          = "cmd/kubectl-imagepin"
	pluginPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}
)

// self is the module of the binaries, which the plugin uses.
const self = "github.com/imagepin/imagepin"

func main() {
	check := flag.Bool("check", false, "write nothing, fail if the file is out of date")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: licenses [-check] FILE")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *check); err != nil {
		fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

func run(file string, check bool) error {
	root := filepath.Dir(filepath.Dir(file))
	mods, err := modules.Linked(root, shipped, binaries...)
	if err != nil {
		return err
	}
	linked, err := modules.Linked(filepath.Join(root, plugin), pluginPlatforms, ".")
	if err != nil {
		return err
	}
	mods = append(mods, slices.DeleteFunc(linked, func(m modules.Module) bool { return m.Path == self })...)
	slices.SortStableFunc(mods, func(a, b modules.Module) int { return strings.Compare(a.Path, b.Path) })
	text, err := page(slices.Compact(mods))
	if err != nil {
		return err
	}
	if !check {
		return os.WriteFile(file, text, 0o644)
	}
	present, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(present, text) {
		return fmt.Errorf("%s is out of date: run make licenses", file)
	}
	return nil
}

func page(mods []modules.Module) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(`# Licenses

imagepin has the Apache License 2.0, see [LICENSE](../LICENSE). This page lists the modules in its binaries (containerd,
ctr, the shim and imagepin, for Linux, and the kubectl plugin, for Linux, macOS and Windows). The packages contain the
license texts in ` + "`/usr/share/doc/<package>/third-party-licenses.txt`" + ` and the modules with versions and checksums in
` + "`sbom.spdx.json`" + `. The archives of the plugin contain ` + "`third-party-licenses.txt`" + `.

`)
	fmt.Fprintf(&b, "Allowed licenses: %s. `make check-licenses`, a part of `make check`, rejects others.\n`make licenses` writes this file.\n\n", strings.Join(allowed, ", "))
	b.WriteString("| module | license |\n|---|---|\n")
	var rows []string
	for _, m := range mods {
		l, err := m.License()
		if err != nil {
			return nil, err
		}
		if reason, ok := exceptions[m.Path]; ok {
			rows = append(rows, fmt.Sprintf("| %s | %s: %s |\n", m.Path, l.ID, reason))
			continue
		}
		for id := range strings.SplitSeq(l.ID, " AND ") {
			if !slices.Contains(allowed, id) {
				return nil, fmt.Errorf("%s@%s is under %s, which is not allowed", m.Path, m.Version, id)
			}
		}
		name := m.Path
		if m.Path == modules.Go {
			name = "Go's standard library"
		}
		rows = append(rows, fmt.Sprintf("| %s | %s |\n", name, l.ID))
	}
	// The plugin may have another version of a module.
	for _, row := range slices.Compact(rows) {
		b.WriteString(row)
	}
	return b.Bytes(), nil
}
