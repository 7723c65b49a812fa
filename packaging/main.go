// Command packaging builds a deb, an rpm and a tarball from each description in
// this directory, with a software bill of materials and checksums. Packages are
// reproducible: the same input results in the same bytes on every machine.
//
//	packaging -version VERSION -stage DIR -out DIR ARCH...
//
// The stage has <arch>/ with the binaries, man/ and completions/. "make
// packages" creates it. SOURCE_DATE_EPOCH is the time of all files in the
// packages.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

func main() {
	var b build
	flag.StringVar(&b.version, "version", "", "the semantic version")
	flag.StringVar(&b.stage, "stage", "", "the directory of the build output")
	flag.StringVar(&b.out, "out", "", "the directory to write to")
	flag.Parse()
	if err := b.run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "packaging:", err)
		os.Exit(1)
	}
}

// build is one run of the command.
type build struct {
	version, stage, out string
	mtime               time.Time
}

// descriptions are the descriptions of the packages, in nfpm's format.
var descriptions = []string{"imagepin.yaml", "imagepin-containerd.yaml"}

func (b *build) run(archs []string) error {
	if b.version == "" || b.stage == "" || b.out == "" || len(archs) == 0 {
		return errors.New("-version, -stage, -out and an architecture are required")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.mtime = time.Unix(epoch, 0).UTC()
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	if err := compressManPages(filepath.Join(b.stage, "man")); err != nil {
		return err
	}
	for _, arch := range archs {
		for _, d := range descriptions {
			if err := b.packages(d, arch); err != nil {
				return fmt.Errorf("%s for %s: %w", d, arch, err)
			}
		}
	}
	return writeChecksums(b.out)
}
