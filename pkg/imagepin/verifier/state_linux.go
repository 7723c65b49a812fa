package verifier

import (
	"io/fs"
	"syscall"
	"time"
)

// fileState differs after each change of a file that the clock of its file system can tell. The zero value is no state.
type fileState struct {
	device, inode uint64
	size          int64
	modified      syscall.Timespec
	changed       syscall.Timespec // also by a change of the modification time
}

// stateOf returns the state of a file, and when it has changed last. The state is the zero value if it is not known.
func stateOf(info fs.FileInfo) (fileState, time.Time) {
	s, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileState{}, time.Time{}
	}
	return fileState{device: uint64(s.Dev), inode: s.Ino, size: s.Size, modified: s.Mtim, changed: s.Ctim}, time.Unix(s.Ctim.Unix())
}
