// Command plugin builds an archive of the kubectl plugin and its bill of materials for each platform, and the manifest with
// which krew installs them. Archives are reproducible: the same input results in the same bytes on every machine.
//
//	plugin -version VERSION -stage DIR -out DIR OS/ARCH...
//
// The stage has OS-ARCH/ with the binary. "make plugin" creates it. SOURCE_DATE_EPOCH is the time of all files in the
// archives.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	var b build
	flag.StringVar(&b.version, "version", "", "the semantic version")
	flag.StringVar(&b.stage, "stage", "", "the directory of the build output")
	flag.StringVar(&b.out, "out", "", "the directory to write to")
	flag.StringVar(&b.root, "root", "..", "the directory of the repository")
	flag.Parse()
	if err := b.run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "plugin:", err)
		os.Exit(1)
	}
}

// build is one run of the command.
type build struct {
	version, stage, out, root string
	mtime                     time.Time
	// licenses returns the licenses of the modules that are linked for a platform. It is a function for tests.
	licenses func(platform string) ([]byte, error)
	// bill returns the bill of materials of a platform. It is a function for tests.
	bill func(platform string) ([]byte, error)
}

func (b *build) run(platforms []string) error {
	if b.version == "" || b.stage == "" || b.out == "" || len(platforms) == 0 {
		return errors.New("-version, -stage, -out and a platform are required")
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.mtime = time.Unix(epoch, 0).UTC()
	if b.licenses == nil {
		b.licenses = b.linkedLicenses
	}
	if b.bill == nil {
		b.bill = b.binaryBill
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	sums := make(map[string]string)
	for _, platform := range platforms {
		if sums[platform], err = b.archive(platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
		if err := b.writeBill(platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	manifest, err := b.manifest(sums)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, "imagepin.yaml"), manifest, 0o644)
}

// archiveName returns the name of the archive of a platform.
func (b *build) archiveName(platform string) string {
	return fmt.Sprintf("%s-%s-%s.tar.gz", name, b.version, strings.ReplaceAll(platform, "/", "-"))
}

// name is the name of the binary.
const name = "kubectl-imagepin"

// binary returns the path of the binary of a platform.
func (b *build) binary(platform string) string {
	path := filepath.Join(b.stage, strings.ReplaceAll(platform, "/", "-"), name)
	if strings.HasPrefix(platform, "windows/") {
		path += ".exe"
	}
	return path
}
