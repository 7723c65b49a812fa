package measure

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// DiskBusy returns how long the block device of the filesystem of a path had at least one request to serve, since the
// start of the machine. ok is false if the filesystem has no block device of its own, as tmpfs and btrfs.
func DiskBusy(path string) (_ time.Duration, ok bool, _ error) {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return 0, false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	stat := fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev))
	b, err := os.ReadFile(stat)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	busy, err := diskBusy(string(b))
	if err != nil {
		err = fmt.Errorf("%s: %w", stat, err)
	}
	return busy, true, err
}

// diskBusy reads the line of a block device's stat (Documentation/block/stat.rst of Linux).
func diskBusy(stat string) (time.Duration, error) {
	const ioTicks = 9
	fields := strings.Fields(stat)
	if len(fields) <= ioTicks {
		return 0, fmt.Errorf("only %d fields in %q", len(fields), stat)
	}
	n, err := strconv.ParseInt(fields[ioTicks], 10, 64)
	return time.Duration(n) * time.Millisecond, err
}
