package config

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// IsLockName reports whether a file of this name in locks_directory is a lock. A name that begins with a dot is none, so that a file can
// be written there and then renamed.
func IsLockName(name string) bool { return isDropped(name, ".yaml", ".yml", ".json") }

// IsBundleName reports whether a file of this name in bundles_directory is a bundle. A name that begins with a dot is none.
func IsBundleName(name string) bool { return isDropped(name, ".tar", ".tar.zst") }

func isDropped(name string, ends ...string) bool {
	return !strings.HasPrefix(name, ".") && slices.ContainsFunc(ends, func(end string) bool { return strings.HasSuffix(name, end) })
}

// UnusedDrops returns why the files in the drop directories have no effect on a node without the part for locks and bundles. It returns
// "" if there are none. A directory that cannot be read has none.
func (s Settings) UnusedDrops() string {
	var used []string
	check := func(dir string, is func(name string) bool) {
		files, _ := os.ReadDir(dir)
		if slices.ContainsFunc(files, func(f fs.DirEntry) bool { return is(f.Name()) }) {
			used = append(used, dir)
		}
	}
	check(s.LocksDirectory, IsLockName)
	check(s.BundlesDirectory, IsBundleName)
	if used == nil {
		return ""
	}
	return fmt.Sprintf("ignoring the files in %s: %s", strings.Join(used, " and "), withoutPart(FleetPart))
}
