// Command repository writes an APT and an rpm repository with packages, to be served by any web server. They are
// reproducible, and not signed.
//
//	repository -out DIR PACKAGE...
//
// It replaces DIR/apt and DIR/rpm. SOURCE_DATE_EPOCH is the date of the repositories.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/imagepin/imagepin/packaging/internal/apt"
	"github.com/imagepin/imagepin/packaging/internal/rpmmd"
)

func main() {
	out := flag.String("out", "", "the directory to write to")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "repository:", err)
		os.Exit(1)
	}
}

func run(out string, packages []string) error {
	if out == "" || len(packages) == 0 {
		return errors.New("-out and a package are required")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	byFormat := make(map[string][]string)
	for _, p := range packages {
		byFormat[filepath.Ext(p)] = append(byFormat[filepath.Ext(p)], p)
	}
	for _, r := range []struct {
		name  string
		files []string
		write func(dir string, packages []string, date time.Time) error
	}{{"apt", byFormat[".deb"], apt.Write}, {"rpm", byFormat[".rpm"], rpmmd.Write}} {
		dir := filepath.Join(out, r.name)
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if err := r.write(dir, r.files, time.Unix(epoch, 0).UTC()); err != nil {
			return err
		}
	}
	return nil
}
