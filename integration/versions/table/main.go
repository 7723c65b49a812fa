// Command table updates or checks the tables in RELEASES.md of the containerds and kubelets that imagepin is tested with.
// That of containerds has the expected outcomes or, with -results, those of the tests.
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
	check := flag.Bool("check", false, "fail if the table is out of date, and write nothing")
	results := flag.String("results", "", "`file` with the outcomes that TestVersions wrote")
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
	kubelets, err := matrix.Kubelets(root)
	if err != nil {
		return err
	}
	next, err := matrix.Insert(string(doc), matrix.BeginContainerds, matrix.Table(all))
	if err == nil {
		next, err = matrix.Insert(next, matrix.BeginKubelets, matrix.KubeletTable(kubelets))
	}
	if err != nil || next == string(doc) {
		return err
	}
	if check {
		return errors.New("a table in RELEASES.md is out of date: run make test-versions, then make versions-table")
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
