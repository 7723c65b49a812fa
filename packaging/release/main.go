// Command release collects what a release consists of, with its checksums and its provenance. The output is the same on
// every machine, except for the builder in the provenance.
//
//	release -version VERSION -built VERSION -commit COMMIT [-builder URI] [-check] DIST
//
// DIST has the packages, and in plugin/ and image/ the other files. They are linked into DIST/release, which is replaced.
// The version has to be that of the binaries, with a "v", and the working tree has to be the commit. With -check, only this is
// checked. "make release" runs it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/mod/semver"
)

func main() {
	var r release
	flag.StringVar(&r.version, "version", "", "the version of the release, with a v")
	flag.StringVar(&r.built, "built", "", "the version of the binaries, without a v")
	flag.StringVar(&r.commit, "commit", "", "the commit at the start of the build")
	flag.StringVar(&r.builder, "builder", localBuilder, "the URI of who builds")
	flag.StringVar(&r.root, "root", "..", "the directory of the repository")
	check := flag.Bool("check", false, "only check the version and the working tree")
	flag.Parse()
	if err := r.run(flag.Args(), *check); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is one run of the command.
type release struct {
	version, built, commit, builder, root string
}

func (r *release) run(args []string, check bool) error {
	if err := checkVersion(r.version, r.built); err != nil {
		return err
	}
	if err := r.checkTree(); err != nil || check {
		return err
	}
	if len(args) != 1 {
		return errors.New("one directory is required")
	}
	out := filepath.Join(args[0], "release")
	files, err := collect(args[0], out)
	if err != nil {
		return err
	}
	if err := writeChecksums(out, files); err != nil {
		return err
	}
	statement, err := provenance(source{version: r.version, commit: r.commit, goVersion: runtime.Version()}, r.builder, files)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, fmt.Sprintf("imagepin-%s.provenance.json", r.built)), statement, 0o644)
}

// checkVersion returns an error if version is not a semantic version, or not the one of the binaries.
func checkVersion(version, built string) error {
	if version == "" || semver.Canonical(version) != version {
		return fmt.Errorf("VERSION %q is not a semantic version like v1.2.3", version)
	}
	if version != "v"+built {
		return fmt.Errorf("VERSION is %s, but version/version.go has %s: change it, commit and try again", version, built)
	}
	return nil
}

// checkTree returns an error if the working tree is not the commit of the build.
func (r *release) checkTree() error {
	status, err := r.git("status", "--porcelain")
	if err != nil {
		return err
	}
	if status != "" {
		return fmt.Errorf("the working tree has changes, which the provenance would not name:\n%s", status)
	}
	head, err := r.git("rev-parse", "HEAD")
	if err != nil {
		return err
	}
	if head != r.commit {
		return fmt.Errorf("HEAD is %s, but the build started with commit %q", head, r.commit)
	}
	return nil
}

func (r *release) git(args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-C", r.root}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
