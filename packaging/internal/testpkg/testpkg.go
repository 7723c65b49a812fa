// Package testpkg builds small packages for tests.
package testpkg

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers itself
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// Date is the time of the packages.
var Date = time.Unix(1700000000, 0).UTC()

// Build builds a package with the program /usr/bin/NAME in a new directory, and returns its path. format is deb or rpm, arch
// one of Go's names, and depends the packages that it needs.
func Build(t testing.TB, format, name, version, arch string, depends ...string) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: name, Version: version, Arch: arch, Maintainer: "Test <test@example.com>", Description: "A package & a test",
		License: "Apache-2.0", MTime: Date,
		Overridables: nfpm.Overridables{
			Depends: depends,
			Contents: files.Contents{{
				Source: program, Destination: "/usr/bin/" + name, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: Date},
			}},
			RPM: nfpm.RPM{BuildHost: "localhost"},
		},
	})
	p, err := nfpm.Get(format)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, p.ConventionalFileName(info))
	f, err := os.Create(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Package(info, f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return out
}
