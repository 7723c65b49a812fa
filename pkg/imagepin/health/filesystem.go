package health

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/containerd/containerd/v2/core/mount"
)

// The superblock of EROFS, see fs/erofs/erofs_fs.h in Linux.
const (
	erofsSuper     = 1024 // its offset
	erofsSuperSize = 128
	erofsMagic     = 0xE0F5E1E2
)

// brokenFile describes what is wrong with the file of a snapshot that is a file system. It returns "" if nothing is, or if the source of
// the mount is no file. A file that the kernel had not written when the power was cut is empty or too short. The kernel refuses to mount
// it with an error that it also has for what it does not support.
func brokenFile(m mount.Mount) (why string, _ error) {
	info, err := os.Stat(m.Source)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if info.Size() == 0 {
		return fmt.Sprintf("%s is empty", m.Source), nil
	}
	if m.Type != "erofs" {
		return "", nil
	}
	f, err := os.Open(m.Source)
	if err != nil {
		return "", err
	}
	defer f.Close()
	super := make([]byte, erofsSuperSize)
	switch _, err := f.ReadAt(super, erofsSuper); {
	case errors.Is(err, io.EOF):
		return fmt.Sprintf("%s has %d bytes", m.Source, info.Size()), nil
	case err != nil:
		return "", err
	}
	if binary.LittleEndian.Uint32(super) != erofsMagic {
		return fmt.Sprintf("%s is no EROFS file system", m.Source), nil
	}
	blockBits, blocks := super[12], binary.LittleEndian.Uint32(super[36:])
	if want := int64(blocks) << min(blockBits, 31); info.Size() < want {
		return fmt.Sprintf("%s has %d bytes instead of %d", m.Source, info.Size(), want), nil
	}
	return "", nil
}
