package manpages

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"
)

// Write writes the page of the last command in path, which begins with the root.
func Write(w io.Writer, path []*cli.Command) error {
	_, err := io.WriteString(w, page(path, path[0].Version, date()))
	return err
}

// WriteDir writes the pages of root and of all commands below it into a directory, which it creates. Each file has the name of the
// page, for example imagepin-pin-set.1.
func WriteDir(dir string, root *cli.Command) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for name, text := range pages(root, date()) {
		if err := os.WriteFile(filepath.Join(dir, name+".1"), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// date returns the date on the pages. It is that of $SOURCE_DATE_EPOCH, see reproducible-builds.org, or empty.
func date() string {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return ""
	}
	return time.Unix(seconds, 0).UTC().Format(time.DateOnly)
}
