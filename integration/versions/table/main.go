// Command table writes into RELEASES.md which containerds imagepin is tested with, or checks what is written there: that it is
// what the tests are made for or, with -results, what they have found.
//
//	table [-check] [-results FILE] ROOT
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/imagepin/imagepin/integration/versions/matrix"
)

func main() {
	check := flag.Bool("check", false, "write nothing, and fail where something would be written")
	results := flag.String("results", "", "what the tests found: the `file` that TestVersions writes")
	flag.Parse()
	if err := run(flag.Arg(0), *results, *check); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "table:", err)
		os.Exit(1)
	}
}

func run(root, results string, check bool) error {
	all, err := matrix.Read(root)
	if results != "" {
		all, err = read(results)
	}
	if err != nil {
		return err
	}
	path := filepath.Join(root, "RELEASES.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	next, err := matrix.Insert(string(doc), matrix.Table(all))
	if err != nil || next == string(doc) {
		return err
	}
	if check {
		return errors.New("the versions in RELEASES.md are not those of the tests: run make test-versions, then make versions-table")
	}
	return os.WriteFile(path, []byte(next), 0o644)
}

func read(path string) ([]matrix.Containerd, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return matrix.Parse(text)
}
