package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/imagepin/imagepin/packaging/internal/content"
)

// artifact is a file of the release.
type artifact struct {
	name, sha256 string
}

// parts are the directories below dist with files of the release.
var parts = []string{".", "plugin", "image"}

// collect links the files of the release into the directory out, and returns them by name.
func collect(dist, out string) ([]artifact, error) {
	if err := os.RemoveAll(out); err != nil {
		return nil, err
	}
	if err := os.Mkdir(out, 0o755); err != nil {
		return nil, err
	}
	var all []artifact
	for _, part := range parts {
		entries, err := os.ReadDir(filepath.Join(dist, part))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			// These checksums are of the packages only.
			if !e.Type().IsRegular() || e.Name() == checksums {
				continue
			}
			a, err := link(filepath.Join(dist, part, e.Name()), out)
			if err != nil {
				return nil, err
			}
			all = append(all, a)
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no files", dist)
	}
	slices.SortFunc(all, func(a, b artifact) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

func link(file, out string) (artifact, error) {
	name := filepath.Base(file)
	if err := os.Link(file, filepath.Join(out, name)); err != nil {
		return artifact{}, err
	}
	sum, _, err := content.DigestFile(file)
	return artifact{name, sum}, err
}

// checksums is the name of the file with the checksums.
const checksums = "SHA256SUMS"

func writeChecksums(out string, files []artifact) error {
	var b strings.Builder
	for _, f := range files {
		fmt.Fprintf(&b, "%s  %s\n", f.sha256, f.name)
	}
	return os.WriteFile(filepath.Join(out, checksums), []byte(b.String()), 0o644)
}
